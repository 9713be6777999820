#pragma once

/// ASAN_OPTIONS for programs started by mpirun. Open MPI keeps memory in components that it has closed by the time
/// leaks are looked for, so that no suppression by name matches them. Everything else is still looked at there, and
/// leaks of our own by every test without MPI.
inline constexpr const char* kAsanOptionsUnderMpirun = "detect_leaks=0:detect_stack_use_after_return=0";
