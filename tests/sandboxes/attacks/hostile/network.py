"""Attempts to reach anything but the two doors of the exchange folder."""

from __future__ import annotations

import os
import socket
import struct
from functools import partial

from probing import FACTS, attempt, first, looking, trying

REACH_S = 0.5


def _reach(host, port, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as door:
        door.settimeout(REACH_S)
        door.connect((host, port))
        if kind == socket.SOCK_DGRAM:
            door.send(b"x")
    return host, port


def _reach_any(places, kinds=(socket.SOCK_STREAM,)):
    return first(*(partial(_reach, host, port, kind) for host, port in places for kind in kinds))


def _reach_unix(address):
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(address)
    return address


INTERNET = [("1.1.1.1", 443), ("9.9.9.9", 53), ("2606:4700:4700::1111", 443)]
METADATA = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254")
ports_of_the_machine = looking(
    "a port of the machine, over loopback, the engine's bridge and every address of its own",
    lambda: _reach_any((host, FACTS["port"]) for host in FACTS["addresses"]),
)
another_container = looking(
    "another container that runs at once, by its address",
    lambda: _reach_any((host, port) for host in FACTS["neighbours"] for port in (FACTS["port"], 8000, 3128, 22)),
)
internet = looking(
    "the Internet, by address (IPv4 and IPv6, TCP and UDP)",
    lambda: _reach_any(INTERNET, (socket.SOCK_STREAM, socket.SOCK_DGRAM)),
)
metadata_address = looking(
    "the metadata address of a cloud (169.254.169.254, fd00:ec2::254)",
    lambda: _reach_any((host, 80) for host in METADATA),
)
name_through_the_resolver = looking("a name, through the resolver", partial(socket.getaddrinfo, "example.com", 443))


@attempt("a name, asked over UDP of the engine's embedded resolver and of those in /etc/resolv.conf")
def name_over_udp():
    servers = ["127.0.0.11", *FACTS["resolvers"]]
    servers += [line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")]
    query = struct.pack(">6H", 7, 256, 1, 0, 0, 0) + b"\7example\3com\0" + struct.pack(">2H", 1, 1)

    def ask(server):
        with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as door:
            door.settimeout(REACH_S)
            door.connect((server, 53))
            door.send(query)
            return door.recv(512)

    return first(*(partial(ask, server) for server in servers))


@attempt("the resolvers and search domains of the machine, in /etc/resolv.conf")
def resolvers_of_the_machine():
    told = open("/etc/resolv.conf").read()
    return [word for word in FACTS["resolvers"] + FACTS["search"] if word in told]


interfaces = looking("any interface but loopback", lambda: [name for _, name in socket.if_nameindex() if name != "lo"])
raw_packets = trying(
    "raw packets (SOCK_RAW over IPv4 and IPv6)",
    partial(socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    partial(socket.socket, socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
)
frames_of_the_card = trying(
    "frames of the network card (AF_PACKET)", partial(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0x300)
)


@attempt("a new interface (AF_NETLINK: RTM_NEWLINK)")
def new_interface():
    name = struct.pack("HH", 8, 3) + b"pro\0"
    kind = struct.pack("HH", 10, 1) + b"dummy\0\0\0"
    info = struct.pack("HH", 4 + len(kind), 18) + kind
    body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + name + info
    message = struct.pack("IHHII", 16 + len(body), 16, 0x0605, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as door:
        door.settimeout(REACH_S)
        door.send(message)
        code = -struct.unpack("i", door.recv(4096)[16:20])[0]
    if code:
        raise OSError(code, os.strerror(code))
    return "pro"


vsock = trying(
    "the hypervisor, over AF_VSOCK (which no network namespace holds)", partial(socket.socket, 40, socket.SOCK_STREAM)
)
abstract_socket_of_the_machine = looking(
    "an abstract Unix socket of the machine", lambda: _reach_unix("\0" + FACTS["abstract"])
)
unix_socket_of_the_machine = looking("a Unix socket of the machine, by its path", lambda: _reach_unix(FACTS["unix"]))
door_of_another_run = looking(
    "the door of another run, by the path of its socket", lambda: _reach_unix(f"{FACTS['other_exchange']}/server.sock")
)


@attempt("a port below 1024 of one's own, to pose as a service")
def low_port():
    with socket.socket() as door:
        door.bind(("0.0.0.0", 53))
    return None if open("/proc/sys/net/ipv4/ip_unprivileged_port_start").read().strip() == "0" else 53
