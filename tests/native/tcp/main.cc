// Checks the collectives over TCP by themselves, without TensorFlow: `tcp NAME...`.
//
//   pure        digests, plans, the choice of an algorithm
//   algorithms  every operation of 1 to 7 members, of every size, dtype and algorithm
//   orders      members that come to their operations in different orders
//   strangers   wrong keys, other starts of the job, port scanners, connections that say nothing
//   failures    members that die, that stop, that give up, that call with other shapes; and starting again
//   speed       prints times; `tcp member RANK ADDRESS PORT ADDRESS PORT...` does so as one of several hosts
//
// Members are threads, or processes where one is killed or stopped. It ends with 0 if everything was right, and says what
// was not.

#include <cstdio>
#include <map>
#include <string>

#include "members.h"

using namespace tfdist::collectives::checks;
using tfdist::collectives::Clock;

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "member") return be_member({argv + 2, argv + argc});
  const std::map<std::string, void (*)()> checks = {
      {"pure", check_pure},
      {"algorithms", check_algorithms},
      {"orders", check_orders},
      {"strangers", check_strangers_and_impostors},
      {"failures", check_failures},
      {"speed", print_speed_of_two},
  };
  for (int i = 1; i < argc; ++i) {
    const auto check = checks.find(argv[i]);
    require(check != checks.end(), std::string("there is no check ") + argv[i]);
    if (check == checks.end()) continue;
    const Clock::time_point begin = Clock::now();
    check->second();
    std::printf("%s: %s, %.1f s\n", argv[i], wrong == 0 ? "ok" : "wrong", seconds_since(begin));
    std::fflush(stdout);
  }
  return argc > 1 && wrong == 0 ? 0 : 1;
}
