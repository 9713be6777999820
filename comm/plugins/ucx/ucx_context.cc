#include "ucx_context.h"

#include <cstdlib>
#include <stdexcept>

#include "bellows/base/mutex.h"

namespace bellows {
namespace {

ucp_context_h make_context() {
  ucp_config_t* config = nullptr;
  check_ucx(ucp_config_read(nullptr, nullptr, &config), "the settings of UCX (UCX_*)");
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // ranks may be threads, each with its own worker
  params.name = "bellows";
  ucp_context_h context = nullptr;
  const ucs_status_t status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  check_ucx(status, "ucp_init");
  return context;
}

}  // namespace

void check_ucx(ucs_status_t status, const std::string& what) {
  if (status != UCS_OK) throw std::runtime_error("UCX: " + what + ": " + ucs_status_string(status));
}

ucp_context_h ucx_context() {
  static Mutex mutex;
  static ucp_context_h context BELLOWS_GUARDED_BY(mutex) = nullptr;
  MutexLock lock(mutex);
  if (!context) context = make_context();
  return context;
}

}  // namespace bellows
