// One rank of a job started by mpirun: finds its peers over MPI, adds something up with them over shared memory.
#include <cstdio>

#include "bellows/comm/communicator.h"

int main() {
  using namespace bellows;
  World world;
  std::string why;
  const auto bootstrap = make_mpi_bootstrap(&world, &why);
  if (!bootstrap) {
    std::fprintf(stderr, "no MPI: %s\n", why.c_str());
    return 1;
  }
  const auto comm = connect(world, *bootstrap);
  std::vector<float> data(1000, static_cast<float>(world.rank + 1));
  all_reduce<float>(*comm, data);
  comm->barrier();
  std::printf("rank %d of %d, local %d of %d, generation %d, over %s: sum %g\n", world.rank, world.world_size,
              world.local_rank, world.local_size, static_cast<int>(world.generation), comm->transport(), data[999]);
  return 0;
}
