#!/usr/bin/env bash
# Finding: Horovod's collectives do not use the network interface that the job was given.
#
# Versions: horovod 0.28.1 with Gloo, built for tensorflow-cpu 2.12.1; Python 3.11. It compiles for a minute or more.
# Behaviour: HOROVOD_GLOO_IFACE, which `horovodrun --network-interfaces` sets, decides where ranks connect to agree on
# operations. The tensors travel over other connections, those of a process set, and the set of all ranks is one, too.
# These go to the address of the host's own name, not to the interface. Where /etc/hosts gives that name a loopback
# address, as Debian does with 127.0.1.1, no rank of another host can connect. Let the name lead to the interface.
# Output seen, on a host whose name leads to 127.0.0.1, with the interface eth0: 2 connections at the interface, 2 elsewhere
# The script fails if all connections are at the interface. It needs g++, make, and two interfaces with IPv4 addresses.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
export PATH="$folder/venv/bin:$PATH" TF_CPP_MIN_LOG_LEVEL=3
pip="pip install --quiet --disable-pip-version-check"
$pip "setuptools<70" wheel "cmake>=3.26,<4" tensorflow-cpu==2.12.1 psutil==7.1.3 cloudpickle==3.1.2 pyyaml==6.0.3 \
  packaging==25.0
HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
  HOROVOD_CPU_OPERATIONS=GLOO $pip --no-build-isolation --no-deps horovod==0.28.1
cd "$folder"
cat > program.py <<'PROGRAM'
import os
import socket

import psutil

own = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
others = {
    address.address: name
    for name, addresses in psutil.net_if_addrs().items()
    for address in addresses
    if address.family == socket.AF_INET and address.address not in own
}
if not others:
    raise SystemExit("this host has no interface besides that of its own name")
# on one host, horovodrun always sets the loopback interface
interface, os.environ["HOROVOD_GLOO_IFACE"] = next(iter(others.items()))

import horovod.tensorflow as hvd

hvd.init()
if hvd.rank() == 0:
    rendezvous = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])  # of horovodrun; other connections lead to ranks
    there = [one for one in psutil.Process().net_connections("tcp") if one.status == "ESTABLISHED"]
    used = [one.laddr.ip for one in there if one.raddr.port != rendezvous]
    at, elsewhere = used.count(interface), len(used) - used.count(interface)
    print(f"{at} connections at the interface, {elsewhere} elsewhere")
    assert at and elsewhere, f"the behaviour has changed: {there}"
hvd.shutdown()
PROGRAM
horovodrun --gloo -np 2 -H localhost:2 python program.py
