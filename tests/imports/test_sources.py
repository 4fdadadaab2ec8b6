"""Compression, encodings, and paths of every kind."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
import zlib
from collections.abc import Callable

import pytest
import zstandard

from batchq.importing.compression import kind_of, unpacked
from batchq.importing.rows import Refused, Row, Unreadable

from .conftest import Place, Reader, split

LINES = b"".join(b'{"n":%d,"r":"%064x"}\n' % (n, n * 7919) for n in range(2000))

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.compress,
}


def plain(data: bytes, block: int = 4096) -> bytes:
    kind = kind_of(data[:16])
    return b"".join(unpacked((data[at : at + block] for at in range(0, len(data), block)), kind))


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("block", [1, 7, 4096, 1 << 20])
def test_all_members_are_read(kind: str, block: int) -> None:
    """Three members one behind the other, cut into blocks anywhere."""
    pack = PACKERS[kind]
    data = pack(LINES[:1000]) + pack(b"") + pack(LINES[1000:5000])
    assert kind_of(data[:16]) == kind
    assert plain(data, block) == LINES[:5000]


@pytest.mark.parametrize("kind", PACKERS)
def test_what_is_cut_off_is_no_end(kind: str) -> None:
    """Everything before the cut is handed on, then the error; at no length of the file is it taken for whole."""
    data = PACKERS[kind](LINES)
    for cut in (20, len(data) // 2, len(data) - 5, len(data) - 1):
        got: list[bytes] = []
        with pytest.raises(Unreadable, match=r"cut off|damaged"):
            got.extend(unpacked(iter([data[:cut]]), kind))
        assert LINES.startswith(b"".join(got))


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("garbage", [b"x", b"garbage behind the end", b"\x1f\x8b\x08\x00"])
def test_what_stands_behind_the_end_is_an_error(kind: str, garbage: bytes) -> None:
    """It may be the beginning of data that was damaged."""
    with pytest.raises(Unreadable):
        plain(PACKERS[kind](LINES) + garbage)


def test_zeros_behind_gzip_are_padding() -> None:
    """Tapes and some tools fill the last block."""
    assert plain(gzip.compress(LINES) + b"\0" * 1000, 512) == LINES


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
def test_a_wrong_checksum_is_an_error(kind: str) -> None:
    """The data came out, and is not what was packed."""
    data = bytearray(PACKERS[kind](LINES))
    place = {"gzip": -6, "bzip2": 12, "xz": len(data) // 2}[kind]
    data[place] ^= 0xFF
    with pytest.raises(Unreadable, match="damaged"):
        plain(bytes(data))


@pytest.mark.parametrize("kind", PACKERS)
def test_what_unpacks_to_much_comes_out_in_pieces(kind: str) -> None:
    """48 MiB of zeros in a few bytes: no piece is larger than 32 MiB, most are far smaller."""
    data = PACKERS[kind](bytes(48 << 20))
    sizes = [len(piece) for piece in unpacked(iter([data]), kind)]
    assert sum(sizes) == 48 << 20
    assert max(sizes) <= (33 << 20 if kind == "zstd" else 256 << 10)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"PK\x03\x04" + bytes(100), "zip"),
        (b"PAR1" + bytes(100), "Parquet"),
        (b"SQLite format 3\x00" + bytes(100), "SQLite"),
        (gzip.compress(b"PK\x03\x04" + bytes(100)), "zip"),
        (gzip.compress(gzip.compress(b"a,b\n")), "gzip around gzip"),
        ("a,b\n1,2\n".encode("utf-16-le"), "UTF-16"),
    ],
    ids=["zip", "parquet", "sqlite", "zip in gzip", "gzip twice", "utf-16"],
)
def test_what_is_no_text_is_refused_by_its_name(read: Reader, data: bytes, said: str) -> None:
    """Instead of thousands of rejected lines."""
    with pytest.raises(Refused) as caught:
        read("f.csv", data)
    assert said in str(caught.value)


def test_a_csv_may_begin_like_bzip2(read: Reader) -> None:
    """Only the whole of the magic is one."""
    assert read.values("f.csv", b"BZh9,b\n1,2\n") == [{"BZh9": "1", "b": "2"}]


@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.csv"])
@pytest.mark.parametrize("packed", [True, False])
def test_the_name_says_nothing_of_compression(read: Reader, name: str, packed: bool) -> None:
    """A plain file named .gz, and a packed one that is not."""
    data = b"a,b\n1,2\n"
    assert read.values(name, gzip.compress(data) if packed else data) == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize(
    ("encoding", "asked"),
    [
        ("utf-8-sig", None),
        ("utf-16", None),
        ("utf-32", None),
        ("utf-16-le", "utf-16-le"),
        ("cp1252", "cp1252"),
        ("shift_jis", "shift_jis"),
        ("iso2022_jp", "iso2022_jp"),
        ("cp037", "cp037"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "ndjson", "json"])
def test_encodings(read: Reader, encoding: str, asked: str | None, kind: str) -> None:
    """By mark or by name; also those in which a line end is not one byte."""
    text = (
        "Größe"
        if encoding in ("cp1252", "cp037")
        else "値段"
        if "jp" in encoding or "jis" in encoding
        else "Größe 値段"
    )
    row = {"a": text, "b": "2"}
    written = {
        "csv": f"a,b\r\n{text},2\r\n",
        "ndjson": f'{{"a":"{text}","b":"2"}}\n',
        "json": f'[{{"a":"{text}",\n"b":"2"}}]\n',
    }[kind]
    assert read.values(f"f.{kind}", written.encode(encoding), encoding=asked) == [row]


@pytest.mark.parametrize("encoding", ["shift_jis", "cp932", "gbk", "gb18030", "big5", "johab", "iso2022_jp", "utf-16"])
def test_brackets_and_backslashes_may_be_halves_of_characters(read: Reader, encoding: str) -> None:
    """A scan of the bytes would end an array's strings where they do not end."""
    rows = [{"a": text.encode(encoding, "ignore").decode(encoding)} for text in ("表ソ能", "俓乗侺", "許功蓋", "갂갛")]
    written = json.dumps(rows, ensure_ascii=False).encode(encoding)
    assert read.values("f.json", written, encoding=encoding) == rows


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "shift_jis", "cp1252"])
@pytest.mark.parametrize("kind", ["csv", "ndjson", "json"])
def test_a_character_that_is_none_costs_its_row(read: Reader, encoding: str, kind: str) -> None:
    """Whatever the text is written in: the rows before it and behind it go on."""
    wrong = {"utf-16": b"\x00\xd8", "utf-32": b"\x00\xd8\x00\x00", "shift_jis": b"\x85", "cp1252": b"\x81"}[encoding]
    lines = {
        "csv": ["a\n", "1\n", "x<", ">\n", "3\n"],
        "ndjson": ['{"a":"1"}\n', '{"a":"<', '>"}\n', '{"a":"3"}'],
        "json": ['[{"a":"1"},{"a":"<', '>"},', '{"a":"3"}]'],
    }[kind]
    before, behind = "".join(lines).split("<>")
    # The byte order mark once.
    mark = len("".encode(encoding))
    data = before.encode(encoding) + wrong + behind.encode(encoding)[mark:]
    good, bad = split(read(f"f.{kind}", data, encoding=encoding))
    assert [row["a"] for row in good] == ["1", "3"]
    assert [f"no valid {encoding}" in reason for _, reason in bad] == [True]


def test_utf16_that_was_cut_off(read: Reader) -> None:
    """Half a character is left: of the last row alone."""
    good, bad = split(read("f.csv", "a,b\n1,2\n3,4\n".encode("utf-16")[:-1]))
    assert good == [{"a": "1", "b": "2"}]
    assert bad == [(3, "no valid utf-16 at line 3; see --encoding")]


def test_an_encoding_that_nobody_knows_is_refused(read: Reader) -> None:
    for name in ("klingon", "base64", "utf-9", ""):
        with pytest.raises(Refused, match="is no encoding"):
            read("f.csv", b"a\n1\n", encoding=name)


def test_a_damaged_archive_says_how_far_it_came(spool: Place) -> None:
    """Exit 1, the number that is in, no traceback, no row of the cut end; the header may be lost as well."""
    rows = b"a,b\n" + b"".join(b"%d,%d\n" % (n, zlib.crc32(b"%d" % n)) for n in range(5000))
    data = gzip.compress(rows)
    done = spool.imported(spool.write("cut.csv.gz", data[: len(data) // 2]), "--job", "echo")
    assert done["code"] == 1
    assert done["end"] == "unreadable"
    assert "cut off" in done["err"]
    jobs = spool.jobs()
    assert 0 < len(jobs) == done["enqueued"] < 5000
    assert all(job.kwargs["b"] == str(zlib.crc32(job.kwargs["a"].encode())) for job in jobs)
    none = spool.imported(spool.write("none.csv.gz", data[:15]), "--job", "echo")
    assert (none["code"], none["rows"], none["end"]) == (1, 0, "unreadable")


# -- paths ------------------------------------------------------------------------------------------------------------


def test_every_bad_path_is_named_before_the_first_row(spool: Place) -> None:
    """Missing, a directory, a loop of links: a line each, exit 2, and the good one is not begun."""
    good = spool.write("good.csv", "a\n1\n")
    (spool.folder / "folder").mkdir()
    (spool.folder / "loop").symlink_to("loop")
    done = spool.run("import", good, "missing.csv", "folder", "loop", "--job", "echo").ended(2)
    assert [line.split()[2] for line in done.err.splitlines()] == ["missing.csv", "folder", "loop"]
    assert spool.store.queues() == []


def test_a_name_may_be_any_bytes(spool: Place) -> None:
    """What is no UTF-8 is shown, kept and told to programs as escapes; so is a spool's path with such bytes."""
    name = os.fsdecode(b"caf\xe9.csv")
    (spool.folder / name).write_text("a,b\n1,2\n3\n")
    done = spool.imported(name, "--job", "echo", "--state-dir", str(spool.folder / os.fsdecode(b"st\xe4te")))
    assert (done["enqueued"], done["rejected"], done["file"]) == (1, 1, "caf\\udce9.csv")
    [rejected] = (spool.folder / f"{name}.rejects.ndjson").read_bytes().splitlines()
    assert json.loads(rejected)["file"] == done["file"]
    again = spool.imported(name, "--job", "echo", "--state-dir", str(spool.folder / os.fsdecode(b"st\xe4te")))
    assert (again["enqueued"], again["earlier"]) == (0, 1)
    other = os.fsdecode(bytes(spool.folder) + b"/sp\xf6ol")
    assert spool.run("import", name, "--job", "echo", BATCHQ_URL="", BATCHQ_SPOOL=other).code == 1
    assert json.loads(spool.run("imports", "--json", BATCHQ_URL="", BATCHQ_SPOOL=other).ended(0).out)["rows"] == 2


def test_a_bad_header_is_found_before_the_first_file_begins(spool: Place) -> None:
    """Of several files the heads are looked at before the first row."""
    good, bad = spool.write("good.csv", "a\n1\n"), spool.write("bad.csv", "a,a\n1,2\n")
    spool.run("import", good, bad, "--job", "echo").refused(2, "bad.csv", "same name")
    assert spool.store.queues() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(spool: Place) -> None:
    name = spool.write("secret.csv", "a\n1\n")
    (spool.folder / name).chmod(0)
    spool.run("import", name, "--job", "echo").refused(2, "Permission denied")


def test_stdin_fifo_and_device(place: Place) -> None:
    """A pipe as -, as /dev/stdin and by a FIFO's name: its rows are in, and it is said that it can't go on."""
    data = b"a,b\n" + b"".join(b"%d,x\n" % n for n in range(1000))
    for path in ("-", "/dev/stdin"):
        done = place.imported(path, "--job", "echo", "--rejects", "r.ndjson", stdin=data)
        assert (done["code"], done["enqueued"]) == (0, 1000)
        assert "can't be read a second time" in done["err"]
    os.mkfifo(place.folder / "fifo")
    writer = subprocess.Popen(
        [sys.executable, "-c", "import sys; open('fifo','wb').write(sys.stdin.buffer.read())"],
        cwd=place.folder,
        stdin=subprocess.PIPE,
    )
    assert writer.stdin is not None
    writer.stdin.write(data)
    writer.stdin.close()
    assert place.imported("fifo", "--job", "echo")["enqueued"] == 1000
    assert writer.wait(10) == 0
    assert len(place.jobs()) == 3000
    done = place.imported("/dev/null", "--job", "echo", "--rejects", "r.ndjson")
    assert (done["code"], done["rows"]) == (0, 0)


@pytest.mark.parametrize("grows", [True, False])
def test_a_file_that_changes_while_it_is_read_is_said_to(spool: Place, grows: bool) -> None:
    """It grows, or is cut: the rows that came are in; whether they are all is not known: exit 1."""
    name = spool.write("log.csv", b"a\n" + b"1\n" * 60_000)
    process = subprocess.Popen(
        spool.command("import", name, "--job", "echo", "--json"),
        cwd=spool.folder,
        env=spool.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not spool.store.queues():
        assert process.poll() is None
    if grows:
        with open(spool.folder / name, "ab") as file:
            file.write(b"2\n")
    else:
        os.truncate(spool.folder / name, 100_000)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b'"end":"changed"' in out
    assert json.loads(out.splitlines()[-1])["enqueued"] == spool.store.stats("default").totals["enqueued"]
    assert b"whether these are all" in err
    assert b"Traceback" not in err


def test_the_whole_of_a_row_is_never_in_memory(spool: Place) -> None:
    """Cells of 131071 to 131073 bytes and 1 MB are jobs; 20 MB, with and without quotes, are reported."""
    sizes = [131_071, 131_072, 131_073, 1_000_000, 20_000_000, 1]
    rows = b"a,b\n" + b"".join(b'%d,%b\n%d,"%b"\n' % (s, b"x" * s, s, b"y" * (s - 1) + b"\n") for s in sizes)
    done = spool.imported(spool.write("wide.csv", rows), "--job", "echo")
    assert (done["enqueued"], done["rejected"], done["code"]) == (10, 2, 1)
    assert "_csv" not in done["err"]
    assert [len(job.kwargs["b"]) for job in spool.jobs()] == [n for s in sizes if s < 10**7 for n in (s, s)]
    assert (spool.folder / "wide.csv.rejects.ndjson").stat().st_size < 300_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_constant_memory(spool: Place) -> None:
    """A file of 60 MB, one long record in it and a packed line of 400 MB: the importer stays below 120 MB."""
    line = b'{"n":1,"t":"' + b"x" * 200 + b'"}\n'
    spool.write("many.ndjson", line * 50_000 + b'{"t":"' + b"y" * 50_000_000 + b'"}\n' + line)
    spool.write("bomb.ndjson.gz", gzip.compress(b"x" * (1 << 20)) * 400)
    script = (
        "import sys; from batchq.cli import main; code = main(sys.argv[1:]); "
        # Not ru_maxrss: what is forked inherits its parent's.
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
    )
    for name, rows in (("many.ndjson", 50_002), ("bomb.ndjson.gz", 1)):
        done = subprocess.run(
            [sys.executable, "-c", script, "import", name, "--job", "echo", "--dry-run"],
            cwd=spool.folder,
            env=spool.env(),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        said, rss = done.stdout.strip().splitlines()
        assert f"= {rows} rows" in said
        assert int(rss) < 120_000


def test_rows_of_reads_are_rows(read: Reader) -> None:
    """A row's text is kept as it stands in the input."""
    [row] = read("f.csv", b'a,b\n1,"x\r\ny"\r\n')
    assert isinstance(row, Row)
    assert b"".join(row.raw) == b'1,"x\r\ny"\r\n'
