#pragma once
#include <ucp/api/ucp.h>

#include <string>

namespace bellows {

/// The UCP context of this process, one with shared memory and one without (for ranks of other hosts): made at the
/// first call and kept to the end, because it opens every network device. Any thread. Throws std::runtime_error if UCX
/// finds nothing to use; then a later call tries again.
ucp_context_h ucx_context(bool between_hosts);

/// Throws std::runtime_error unless `status` is UCS_OK.
void check_ucx(ucs_status_t status, const std::string& what);

}  // namespace bellows
