#pragma once
#include <ucp/api/ucp.h>

#include <string>

namespace bellows {

/// The UCP context of this process, one with shared memory and one without (for ranks of other hosts): made at the
/// first call and kept to the end, because it opens every network device. Any thread. Throws std::runtime_error if UCX
/// finds nothing to use; then a later call tries again.
ucp_context_h ucx_context(bool between_hosts);

/// Makes such a context and drops it; throws as above. A context keeps a thread of UCX alive that watches descriptors;
/// after a fork it would go on watching those that the child opens, without an end. So a program that only asks whether
/// there is UCX, and then forks its ranks, must not be left with one.
void try_ucx();

/// Throws std::runtime_error unless `status` is UCS_OK.
void check_ucx(ucs_status_t status, const std::string& what);

}  // namespace bellows
