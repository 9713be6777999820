// `bellows bench collectives` as a program of its own.
#include "bench_collectives.h"

int main(int argc, char** argv) { return bellows::bench_collectives_main(argc, argv); }
