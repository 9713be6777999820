#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "group.h"

namespace bellows {

// Collectives on ordinary memory: small data travels with the announcement, larger data through the staging halves of
// the control segments, piece by piece. All block until this rank has what it asked for.

void staged_broadcast(Group& group, std::span<std::byte> data, int root, const char* what);
void staged_all_to_all(Group& group, const std::vector<std::span<const std::byte>>& send,
                       const std::vector<std::span<std::byte>>& receive, const char* what);
std::vector<std::string> staged_blobs(Group& group, const std::string& blob, const char* what);
void staged_all_reduce(Group& group, std::span<double> data, const char* what);
void barrier(Group& group, const char* what);

}  // namespace bellows
