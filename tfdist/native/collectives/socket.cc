#include "socket.h"

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <memory>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

namespace tfdist::collectives {
namespace {

// What waits in the kernel without having been sent. More only delays what is sent after it on the same connection.
constexpr int kUnsentBytes = 1 << 20;
constexpr int kSendBytes = 16 << 20;  // a round trip of 130 ms at 1 Gbit/s
constexpr int kWaitingConnections = 512;

void set(const Descriptor& socket, int level, int name, int value) {
  setsockopt(socket.get(), level, name, &value, sizeof value);
}

// The largest size to which the kernel lets a send buffer grow by itself; the largest number where that is unknown.
int grown_bytes() {
  std::ifstream sizes("/proc/sys/net/ipv4/tcp_wmem");
  int least = 0, first = 0, most = 0;
  return sizes >> least >> first >> most ? most : INT_MAX;
}

// The size that a send buffer of `kSendBytes` really gets here: twice that, or twice net.core.wmem_max.
int granted_bytes() {
  const Descriptor tried(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set(tried, SOL_SOCKET, SO_SNDBUF, kSendBytes);
  int granted = 0;
  socklen_t size = sizeof granted;
  return getsockopt(tried.get(), SOL_SOCKET, SO_SNDBUF, &granted, &size) == 0 ? granted : 0;
}

SocketAddress name_of(const Descriptor& socket, int (*ask)(int, sockaddr*, socklen_t*)) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (ask(socket.get(), address.get(), &address.size) != 0) address.size = 0;
  return address;
}

// Whether a host's name leads to itself alone: Debian gives a host's own name the address 127.0.1.1.
bool is_name_of_loopback(const std::string& host, const SocketAddress& address) {
  in_addr number;
  if (address.storage.ss_family != AF_INET || host.empty() || host == "localhost") return false;
  if (inet_pton(AF_INET, host.c_str(), &number) == 1) return false;
  return ntohl(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr) >> 24 == 127;
}

std::vector<SocketAddress> addresses_of(const Address& address, int flags, std::string* error) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const std::string host = address.host.empty() ? "127.0.0.1" : address.host;
  const int code = getaddrinfo(host.c_str(), std::to_string(address.port).c_str(), &wanted, &found);
  if (code != 0) {
    *error = host + " cannot be resolved (" + (code == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(code)) + ")";
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (; found != nullptr; found = found->ai_next) {
    SocketAddress one;
    std::memcpy(&one.storage, found->ai_addr, found->ai_addrlen);
    one.size = found->ai_addrlen;
    addresses.push_back(one);
  }
  return addresses;
}

}  // namespace

std::vector<SocketAddress> resolve_number(const Address& address) {
  std::string unused;
  return addresses_of(address, AI_NUMERICHOST, &unused);
}

std::vector<SocketAddress> resolve(const Address& address, std::string* error) { return addresses_of(address, 0, error); }

Descriptor listen_on(const Address& address, std::string* error) {
  for (SocketAddress one : resolve(address, error)) {
    if (is_name_of_loopback(address.host, one)) {  // others, who know it by another address, have to reach it too
      reinterpret_cast<sockaddr_in*>(&one.storage)->sin_addr.s_addr = htonl(INADDR_ANY);
    }
    Descriptor listener(socket(one.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    set(listener, SOL_SOCKET, SO_REUSEADDR, 1);  // connections of the job before may still be closing
    if (one.storage.ss_family == AF_INET6) set(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (listener && bind(listener.get(), one.get(), one.size) == 0 && listen(listener.get(), kWaitingConnections) == 0) {
      return listener;
    }
    *error = "cannot listen on " + address.text() + " (" + std::strerror(errno) + ")";
  }
  return {};
}

std::uint16_t port_of(const Descriptor& listener) {
  const SocketAddress address = name_of(listener, &getsockname);
  const auto* port = address.storage.ss_family == AF_INET6
                         ? &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port
                         : &reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port;
  return ntohs(*port);
}

Descriptor begin_connect(const SocketAddress& address, std::string* error) {
  Descriptor connection(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (connection && (connect(connection.get(), address.get(), address.size) == 0 || errno == EINPROGRESS)) {
    configure(connection);
    return connection;
  }
  *error = std::strerror(errno);
  return {};
}

int connect_error(const Descriptor& connection) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  if (error != 0) return error;
  const SocketAddress mine = name_of(connection, &getsockname), other = name_of(connection, &getpeername);
  if (mine.size != other.size || std::memcmp(&mine.storage, &other.storage, mine.size) != 0) return 0;
  const linger at_once{1, 0};  // no state is left behind that would keep the port from the one who wants to listen on it
  setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  return ECONNREFUSED;
}

// A connection sends no more in a round trip than its send buffer holds. The kernel lets buffers grow with the line
// (tcp_rmem, tcp_wmem). A size that is set ends that and is cut (net.core.rmem_max, wmem_max), often to less than a fast
// line needs. So the send buffer is set only where that gives more. It costs no memory until as much is under way, and
// `kUnsentBytes` still limits what waits.
void configure(const Descriptor& connection) {
  fcntl(connection.get(), F_SETFL, fcntl(connection.get(), F_GETFL) | O_NONBLOCK);
  fcntl(connection.get(), F_SETFD, FD_CLOEXEC);
  set(connection, IPPROTO_TCP, TCP_NODELAY, 1);
  set(connection, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
  static const bool gives_more = granted_bytes() > grown_bytes();
  if (gives_more) set(connection, SOL_SOCKET, SO_SNDBUF, kSendBytes);
}

}  // namespace tfdist::collectives
