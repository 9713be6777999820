#pragma once

namespace bellows {

/// `bellows doctor`: what this host and this build offer, and which limits will hurt.
int doctor_main(int argc, char** argv);

}  // namespace bellows
