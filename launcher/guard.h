#pragma once
#include <functional>

namespace bellows {

/// Runs `body` in a child process, so that one of the two is always there to clean up. The parent passes on signals and
/// returns the body's exit code (128 + signal if it was killed); when either of the two dies, the other ends every
/// descendant, also those that made sessions of their own. Call before any thread exists.
int guarded(const std::function<int()>& body);

/// Calls `handler` from a thread of its own for every SIGINT, SIGTERM and SIGHUP. Call before any thread exists: the
/// signals are blocked in the caller and in all threads it makes.
void on_signals(std::function<void(int signal)> handler);

/// Sends SIGKILL to every descendant until none is left. Looking through /proc takes a while on a large host; from its
/// first moment on `ending()` is true, and whoever starts processes must start no more.
void kill_descendants();
bool ending();

}  // namespace bellows
