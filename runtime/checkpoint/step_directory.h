#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bellows/base/error.h"

namespace bellows {

// Names in a directory of checkpoints:
//
//   step-00000042                  a published checkpoint
//   step-00000042.replaced         the checkpoint that a new save of the same step is about to replace; as good as the
//                                  other, and there only after a kill at that very moment
//   .step-00000042.gen-3.partial   a save under way in generation 3, or what a killed one left behind
//   .step-00000042.removed.partial a checkpoint being removed

std::string step_directory_name(std::int64_t step);
std::string partial_name(std::int64_t step, std::uint64_t generation);
bool is_partial_name(const std::string& name);

/// Paths of the published checkpoints in `directory`, newest step first. Fails if the directory cannot be listed.
Result<std::vector<std::string>> step_directories(const std::string& directory);

/// Renames `partial` to the directory of `step` in `directory`, in place of one that is already there, and makes that
/// durable. A kill at any moment leaves at least one of the two. Throws UserError.
void publish(const std::string& directory, const std::string& partial, std::int64_t step);

/// Removes a published checkpoint so that a kill in the middle leaves no torn one in sight. Failures are logged.
void remove_published(const std::string& path);
/// Removes what killed saves and removals left behind. Failures are logged.
void remove_partials(const std::string& directory);

}  // namespace bellows
