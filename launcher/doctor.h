#pragma once

namespace bellows {

/// `bellows doctor`: what this host and this build offer: cores, measured peaks, memory, GPUs, transports, and the
/// limits that will hurt. Exit code 0 even where something is low: it is said, with the way out.
int doctor_main(int argc, char** argv);

}  // namespace bellows
