#include <cstdlib>

#include "bellows/base/error.h"
#include "bellows/elastic/member.h"

namespace bellows {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// Both or none: one alone means that somebody meant a world and would get another.
bool both_set(const char* a, const char* b, const std::string& who) {
  const bool has_a = !variable(a).empty(), has_b = !variable(b).empty();
  if (has_a == has_b) return has_a;
  throw UserError(std::string(has_a ? b : a) + " is not set, but " + (has_a ? a : b) + " is: " + who +
                  " sets both; set the missing one or unset the other");
}

}  // namespace

std::unique_ptr<Member> make_member_from_environment() {
  const bool coordinated = both_set("BELLOWS_COORDINATOR", "BELLOWS_TOKEN", "bellows run");
  if (!coordinated && !variable("BELLOWS_MEMBER").empty())
    throw UserError("BELLOWS_COORDINATOR is not set, but BELLOWS_MEMBER is: bellows run sets both");
  if (coordinated) {
    MemberOptions options;
    options.coordinator = variable("BELLOWS_COORDINATOR");
    options.token = variable("BELLOWS_TOKEN");
    options.id = variable("BELLOWS_MEMBER");
    options.host = variable("BELLOWS_HOST");
    if (const std::string beat = variable("BELLOWS_HEARTBEAT"); !beat.empty()) {
      char* end = nullptr;
      options.heartbeat_s = std::strtod(beat.c_str(), &end);
      if (*end != '\0' || !(options.heartbeat_s > 0))
        throw UserError("BELLOWS_HEARTBEAT=" + beat + " is not a number of seconds above 0");
    }
    return make_coordinated_member(options);
  }

  const bool open_mpi = both_set("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun");
  const bool pmi = !open_mpi && both_set("PMI_SIZE", "PMI_RANK", "mpirun");
  World world;
  std::string why;
  std::shared_ptr<Bootstrap> mpi;
  if (open_mpi || pmi) mpi = make_mpi_bootstrap(&world, &why);
  if (mpi) return make_fixed_member(world, std::move(mpi));
  const std::string size = variable(open_mpi ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE");
  if ((open_mpi || pmi) && size != "1")
    throw UserError("this is one of " + size + " processes started by mpirun, but they cannot find each other: " + why);
  return make_fixed_member(World{}, std::make_shared<SoloBootstrap>());
}

}  // namespace bellows
