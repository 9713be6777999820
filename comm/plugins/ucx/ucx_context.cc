#include "ucx_context.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "bellows/base/mutex.h"

namespace bellows {
namespace {

/// What UCX chooses badly for us where it has found `transport`, unless the user has chosen.
struct Setting {
  const char* transport;
  const char* name;        // without UCX_
  const char* short_name;  // the name in UCX 1.13 and before, which look into one transport's table at a time
  const char* value;
  std::vector<const char*> users;  // variables of which none may be set; the one called `name` is always among them
};
const Setting kSettings[] = {
    // Rendezvous over TCP goes out in pieces that fit the receiver's segment. UCX's own 64 KiB gave 3.7 GB/s over
    // loopback
    // where iperf3 had 4.8; 512 KiB 6 to 6.5, 256 KiB 3.9, 1 MiB no more than 512 KiB. Costs 4 MiB per worker.
    // A receiving segment must not be smaller than a sending one: both or none.
    {"tcp", "UCX_TCP_RX_SEG_SIZE", "RX_SEG_SIZE", "512K", {"UCX_TCP_TX_SEG_SIZE"}},
    {"tcp", "UCX_TCP_TX_SEG_SIZE", "TX_SEG_SIZE", "64K", {"UCX_TCP_RX_SEG_SIZE"}},
    // Shared memory serves endpoints that handle errors, as ours do, only if told that it may.
    {"posix", "UCX_POSIX_ERROR_HANDLING", "MM_ERROR_HANDLING", "y", {"UCX_MM_ERROR_HANDLING"}},
    {"sysv", "UCX_SYSV_ERROR_HANDLING", "MM_ERROR_HANDLING", "y", {"UCX_MM_ERROR_HANDLING"}},
};

bool user_has_chosen(const Setting& setting) {
  return std::getenv(setting.name) ||
         std::any_of(setting.users.begin(), setting.users.end(), [](const char* name) { return std::getenv(name); });
}

/// What a context prints of itself: "resource 1 : md 1 dev 1 flags -- tcp/lo".
std::string print_context(ucp_context_h context) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* file = open_memstream(&text, &size);
  if (!file) return {};
  ucp_context_print_info(context, file);
  std::fclose(file);
  std::string printed(text, size);
  std::free(text);
  return printed;
}

/// `transports`: print_context() of a context without our settings, since UCX complains of a setting that no transport
/// uses; empty to make that one.
ucp_context_h make_context(const std::string& transports, bool between_hosts) {
  ucp_config_t* config = nullptr;
  check_ucx(ucp_config_read(nullptr, nullptr, &config), "the settings of UCX (UCX_*)");
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  const bool short_names = major == 1 && minor < 14;
  for (const Setting& setting : kSettings)
    if (transports.find(std::string("-- ") + setting.transport + "/") != std::string::npos && !user_has_chosen(setting))
      // Another UCX may not know a name, and does without.
      (void)ucp_config_modify(config, short_names ? setting.short_name : setting.name + std::strlen("UCX_"),
                              setting.value);
  if (between_hosts && !std::getenv("UCX_TLS")) (void)ucp_config_modify(config, "TLS", "^sm");
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

ucp_context_h make_context(bool between_hosts) {
  ucp_context_h plain = make_context({}, between_hosts);
  const std::string transports = print_context(plain);
  ucp_cleanup(plain);
  return make_context(transports, between_hosts);
}

}  // namespace

void check_ucx(ucs_status_t status, const std::string& what) {
  if (status != UCS_OK) throw std::runtime_error("UCX: " + what + ": " + ucs_status_string(status));
}

ucp_context_h ucx_context(bool between_hosts) {
  static Mutex mutex;
  static ucp_context_h contexts[2] BELLOWS_GUARDED_BY(mutex) = {};
  MutexLock lock(mutex);
  ucp_context_h& context = contexts[between_hosts ? 1 : 0];
  if (!context) context = make_context(between_hosts);
  return context;
}

void try_ucx() { ucp_cleanup(make_context(/*between_hosts=*/false)); }

}  // namespace bellows
