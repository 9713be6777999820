// Stands for the driver's NVML in tests: three GPUs. 0 and 1 are joined by two links, each has a link to a switch; the
// third has none and does not tell its name.
#include <cstdio>
#include <cstring>

namespace {
struct Pci {
  char legacy_address[16];
  unsigned domain, bus, device, id, subsystem;
  char address[32];
};
constexpr int kSuccess = 0, kInvalid = 2, kUnsupported = 3;
constexpr unsigned kLinks = 4;
bool started = false;
int gpus[3] = {0, 1, 2};
int index_of(void* device) { return *static_cast<int*>(device); }
int put_address(int bus, Pci* pci) {
  std::snprintf(pci->address, sizeof pci->address, "00000000:%02X:00.0", bus);
  return kSuccess;
}
}  // namespace

extern "C" {
int nvmlInit_v2() { return started = true, kSuccess; }
int nvmlShutdown() { return started = false, kSuccess; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 3, started ? kSuccess : kInvalid; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  return *device = &gpus[index], started ? kSuccess : kInvalid;
}
int nvmlDeviceGetName(void* device, char* text, unsigned size) {
  if (index_of(device) == 2) return kUnsupported;
  return std::snprintf(text, size, "Test GPU"), kSuccess;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  return std::snprintf(text, size, "GPU-%d", index_of(device)), kSuccess;
}
int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) { return put_address(0x1a + index_of(device), pci); }
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  if (link >= kLinks || index_of(device) == 2) return kUnsupported;
  return *active = link != 1, kSuccess;  // link 1 is down
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, Pci* pci) {
  return put_address(link == 0 ? 0x30 : 0x1a + 1 - index_of(device), pci);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned link, int* type) { return *type = link == 0 ? 2 : 0, kSuccess; }
}
