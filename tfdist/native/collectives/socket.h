// Non-blocking TCP sockets: addresses of IPv4 and IPv6, listening, connecting.

#ifndef TFDIST_NATIVE_COLLECTIVES_SOCKET_H_
#define TFDIST_NATIVE_COLLECTIVES_SOCKET_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

namespace tfdist::collectives {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  void reset() {
    if (number_ >= 0) close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

// Where a member listens: a host's name or a number of IPv4 or IPv6, and a port.
struct Address {
  std::string host;
  std::uint16_t port = 0;

  std::string text() const {
    const bool is_ipv6 = host.find(':') != std::string::npos;
    return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
  }
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// The address of a number; none for a name.
std::vector<SocketAddress> resolve_number(const Address& address);

// All addresses that a name has; none, and the reason in `error`, where it cannot be resolved. It may ask a name server.
std::vector<SocketAddress> resolve(const Address& address, std::string* error);

// A socket that listens, and no other process can listen on that port. Port 0 takes a free one; see `port_of`.
// The host "" is the loopback interface. Without a descriptor `error` says why.
Descriptor listen_on(const Address& address, std::string* error);

std::uint16_t port_of(const Descriptor& listener);

// A connection that is there or still under way. Without a descriptor `error` says why.
Descriptor begin_connect(const SocketAddress& address, std::string* error);

// The error that a connection under way has ended in; 0 if it stands. A port of the range from which the kernel takes
// numbers for connections may meet itself while nobody listens on it; that counts as refused.
int connect_error(const Descriptor& connection);

// What every connection gets: it does not block, is not inherited, and sends at once.
void configure(const Descriptor& connection);

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_SOCKET_H_
