#pragma once

namespace bellows {

/// `bellows bench optimizer`: the AdamW step in float32 and with a bfloat16 copy of its weights, held against a stream
/// triad by the same threads in the same run; ratio is the share of the triad's bandwidth for the bytes it must move.
int bench_optimizer_main(int argc, char** argv);

}  // namespace bellows
