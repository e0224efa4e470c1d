"""Keeps bytes of other protocols than ZeroMQ away from ps-lite's parser.

ps-lite aborts the process over an HTTP request at its port: ZeroMQ takes a connection without its greeting for one of
its first protocol versions, in which any byte is a length, and ps-lite parses what follows. A ZeroMQ socket with a ZAP
domain (RFC 27) closes connections of these versions before it reads a message; MXNet itself uses a later one. The
domain adds no authentication, since the process has no ZAP handler.

ps-lite does not expose its sockets, so its calls of `zmq_bind` are redirected to a function of this module.
"""

import ctypes
import functools
import logging
import struct
from collections.abc import Callable
from typing import Any

from trainer.runtime.library import library

ZMQ_ZAP_DOMAIN = 55  # an option of zmq_setsockopt
DOMAIN = b"esync"
# ELF (System V ABI, x86-64): tags of the dynamic section, and structures as the module struct has them.
END, SLOTS_BYTES, STRINGS, SYMBOLS, SLOTS, BIND_NOW = 0, 2, 5, 6, 23, 24
FLAGS, FLAG_BIND_NOW = 30, 8
LINK_MAP = "QQQ"  # the beginning of glibc's link_map, to which a handle of dlopen points: base, name, dynamic section
TAG = "qQ"  # Elf64_Dyn: tag, value
SLOT = "QQq"  # Elf64_Rela, where the address of an imported or exported function is: offset, info, addend
SYMBOL = "IIQQ"  # Elf64_Sym: name; and others

_ZmqBind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)


@functools.cache  # the library calls the function as long as the process lives
def install() -> Callable[[int, bytes], int] | None:
    """Makes every ZeroMQ socket that MXNet binds from now on refuse other protocols. Returns the substitute for
    zmq_bind; None, after a warning, where this build of MXNet does not allow it."""
    found = library()
    try:
        slot = _slot_of(found, b"zmq_bind")
        bind, set_option = found.zmq_bind, found.zmq_setsockopt
    except (AttributeError, LookupError) as error:
        logging.warning(
            "this build of MXNet aborts where another program than MXNet connects to its ports (%s): "
            "close them to others by a firewall",
            error,
        )
        return None
    bind.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    set_option.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]

    def guarded_bind(zmq_socket: int, endpoint: bytes) -> int:
        set_option(zmq_socket, ZMQ_ZAP_DOMAIN, DOMAIN, len(DOMAIN))
        return int(bind(zmq_socket, endpoint))

    function = _ZmqBind(guarded_bind)
    slot.value = ctypes.cast(function, ctypes.c_void_p).value
    return function


def _slot_of(found: ctypes.CDLL, name: bytes) -> ctypes.c_void_p:
    """The slot from which a loaded library takes the address of a function that it calls. Raises LookupError if the
    library has no such slot, or a read-only one."""
    base, _, dynamic = _read(LINK_MAP, found._handle)
    tags: dict[int, int] = {}
    while (entry := _read(TAG, dynamic))[0] != END:
        tags[entry[0]] = entry[1]
        dynamic += struct.calcsize(TAG)
    if BIND_NOW in tags or tags.get(FLAGS, 0) & FLAG_BIND_NOW:
        raise LookupError("its calls cannot be redirected")
    for offset, info, _ in struct.iter_unpack(SLOT, ctypes.string_at(tags[SLOTS], tags[SLOTS_BYTES])):
        place, *_ = _read(SYMBOL, tags[SYMBOLS] + (info >> 32) * struct.calcsize(SYMBOL))
        if ctypes.string_at(tags[STRINGS] + place) == name:
            return ctypes.c_void_p.from_address(base + offset)
    raise LookupError(f"it has no {name.decode()}")


def _read(structure: str, address: int) -> tuple[Any, ...]:
    """The numbers of a structure in memory."""
    return struct.unpack(structure, ctypes.string_at(address, struct.calcsize(structure)))
