// The addresses of names, found without keeping anybody waiting: a name server may take seconds to say that it does not know.

#ifndef TFDIST_NATIVE_COLLECTIVES_RESOLVER_H_
#define TFDIST_NATIVE_COLLECTIVES_RESOLVER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "socket.h"

namespace tfdist::collectives {

// Numbers are resolved at once. Names are asked for in a thread, again and again: a host's name may be entered after its
// process has started, and until then may lead to the host that had it before. When the resolver goes, the thread ends by
// itself, when the call that it is in returns; nobody waits for it.
class Resolver {
 public:
  using Resolve = std::function<std::vector<SocketAddress>(const Address&, std::string* error)>;

  // `resolve`: what asks for a name.
  explicit Resolver(const std::vector<Address>& addresses, Resolve resolve = &collectives::resolve);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // What an address has, as of the last answer; none, and why in `error`, where there has been none.
  std::vector<SocketAddress> find(std::size_t index, std::string* error) const;

 private:
  struct State;
  static void ask(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // with the thread, which may live longer
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_RESOLVER_H_
