// The bootstrap over MPI; the ranks of the end-to-end case are programs/mpi_rank.cc, started by mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "bellows/comm/communicator.h"
#include "mpirun.h"
#include "ranks.h"

namespace bellows {
namespace {

/// Sets a variable for the length of a scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedVariable() { unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;

 private:
  const char* const name_;
};

TEST(MpiBootstrap, IsAbsentInAPlainStart) {
  World world;
  std::string why;
  EXPECT_EQ(make_mpi_bootstrap(&world, &why), nullptr);
  EXPECT_THAT(why, testing::HasSubstr("not started by mpirun"));
  EXPECT_EQ(world, World{});
}

TEST(MpiBootstrap, NamesAVariableThatIsHalfSet) {
  for (const auto& [present, absent] : {std::pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                                        std::pair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
                                        std::pair("PMI_RANK", "PMI_SIZE"), std::pair("PMIX_RANK", "PMIX_NAMESPACE")}) {
    const ScopedVariable variable(present, "0");
    World world;
    std::string why;
    try {
      make_mpi_bootstrap(&world, &why);
      ADD_FAILURE() << present << " alone was accepted";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(present), testing::HasSubstr(absent)));
    }
  }
}

#if defined(BELLOWS_TEST_MPIRUN)
TEST(MpiBootstrap, ConnectsRanksThatMpirunStarted) {
  const std::string command =
      std::string("ASAN_OPTIONS=") + kAsanOptionsUnderMpirun +
      " OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 " BELLOWS_TEST_MPIRUN
      " --oversubscribe -n 4 " BELLOWS_BIN_DIR "/mpi_rank 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  for (char line[256]; std::fgets(line, sizeof line, pipe);) output += line;
  EXPECT_EQ(pclose(pipe), 0) << output;
  for (int r = 0; r < 4; ++r)
    EXPECT_THAT(output, testing::HasSubstr("rank " + std::to_string(r) + " of 4, local " + std::to_string(r) +
                                           " of 4, generation 1, over shm: sum 10\n"));
}

// The suite of all transports, with this program as the ranks.
TEST(MpiTransport, PassesTheSuiteOfAllTransports) {
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string command =
        std::string("ASAN_OPTIONS=") + kAsanOptionsUnderMpirun +
        " OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_mpi_yield_when_idle=1 timeout 250 " BELLOWS_TEST_MPIRUN " --oversubscribe -n " +
        std::to_string(ranks) + " " BELLOWS_BIN_DIR "/comm_tests --gtest_color=no --gtest_filter='UnderMpi/*' 2>&1";
    std::FILE* pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string output;
    for (char line[256]; std::fgets(line, sizeof line, pipe);) output += line;
    EXPECT_EQ(pclose(pipe), 0) << ranks << " ranks: " << output.substr(0, 4000);
    EXPECT_THAT(output,
                testing::HasSubstr("[       OK ] UnderMpi/Collectives.ReduceScatterHasTheBitsOfAPlainLoopOverThe"
                                   "LaneTree/mpi_ring" +
                                   std::to_string(ranks)));
  }
}
#endif

}  // namespace
}  // namespace bellows
