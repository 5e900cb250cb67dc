"""Writing so that a reader, or the next start after a crash, never sees half; reading what may be damaged."""

import ctypes
import json
import os
import resource
import secrets
import shlex
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_agent.errors import ConfigError, in_one_line

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def allow_open_files() -> None:
    """Let this process open as many files and connections as the system allows it."""
    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def whole_lines(path: Path) -> Iterator[bytes]:
    """Iterate over the whole lines of a file; none if there is no file. Raises OSError."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        yield from (line for line in file if line.endswith(b"\n"))


def check_private(path: Path, name: str) -> None:
    """Refuse a secret of this user that others may read, as ssh does. Raises ConfigError.

    A file of somebody else is theirs to guard, and they let this user read it. One on a read-only mount,
    as a container gets its secrets, cannot be changed from here.
    """
    status = path.stat()
    is_open = status.st_uid == os.geteuid() and status.st_mode & 0o077
    if is_open and not os.statvfs(path).f_flag & os.ST_RDONLY:
        raise ConfigError(
            f"{name}={path}: other users can read this secret (mode {status.st_mode & 0o777:04o});"
            f" run: chmod 600 {shlex.quote(str(path))}"
        )


def replaceable(path: Path, name: str) -> Path:
    """Return the file that a new one may replace: where a link leads, for /dev/stdout may lead to a file.

    Raises ConfigError for what is not a file: root would replace a device.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(
            f"{name} {path}: is a folder, a device or a pipe; name a new file, or one to replace"
        )
    return Path(os.path.realpath(path))


def load_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is no file.

    Raises ConfigError for a damaged one, OSError for one that this user may not read.
    """
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read ({in_one_line(error)}); restore the file") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds no JSON object; restore the file")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none that can be read."""
    try:
        return load_object(path)
    except (ConfigError, OSError):
        return {}


def write_whole(path: Path, content: str | bytes, *, is_durable: bool = True) -> None:
    """Replace `path`: readers see the old content or the new one. Durable: also after a power cut.

    Any number of processes may write the same path at once; the last one to end wins.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if is_durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Make a file's content, or a folder's list of names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make a folder and all in it durable."""
    for parent, _, names in os.walk(folder):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


def link_tree(source: Path, target: Path) -> None:
    """Return a copy of a folder that shares its files: hard links, no bytes. Links in it are followed.

    A file on another file system cannot be shared and is copied.
    """
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            link_tree(entry, target / entry.name)
        else:
            link_file(entry, target / entry.name)


def link_file(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system cannot."""
    real = source.resolve(strict=True)
    try:
        target.hardlink_to(real)
    except OSError:
        shutil.copy2(real, target)


def replace_link(link: Path, target: str) -> None:
    """Point the symlink `link` to `target`, atomically, whatever it pointed to before."""
    temporary = link.with_name(link.name + ".tmp")
    remove(temporary)
    temporary.symlink_to(target)
    temporary.replace(link)
    sync(link.parent)


def swap(path: Path, other: Path) -> None:
    """Exchange two names in one system call. Raises OSError where the file system has no such call."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(path), os.fsencode(other))
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def put_in_place(whole: Path, folder: Path) -> None:
    """Rename a folder to `folder`, durably; one that is there goes, in one step where the file system can."""
    try:
        swap(whole, folder)
    except OSError:  # there is none, or the file system has no such call
        aside = folder.with_name(folder.name + ".old.tmp")
        remove(aside)
        if folder.exists():
            folder.rename(aside)
        whole.rename(folder)
        remove(aside)
    else:
        remove(whole)
    sync(folder.parent)


def remove(path: Path) -> None:
    """Delete a file, a link or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
