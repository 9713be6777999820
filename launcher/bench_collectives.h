#pragma once

namespace bellows {

/// `bellows bench collectives`: starts ranks on this host, measures collectives on windows (zero-copy), prints a table,
/// CSV or JSON; with --versus mpi also Open MPI's, in the same invocation. Forks: call it before any thread exists.
int bench_collectives_main(int argc, char** argv);

}  // namespace bellows
