#pragma once

namespace bellows {

/// `bellows bench trainer`: whole training steps of gpt-train on random tokens (forward, backward, reductions, optimizer),
/// held against the matrix peak of the cores measured in the same invocation; with --ranks also how a world of several
/// ranks scales against one rank, run alternately.
int bench_trainer_main(int argc, char** argv);

}  // namespace bellows
