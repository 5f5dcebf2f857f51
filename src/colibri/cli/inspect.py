"""`colibri inspect`: what a checkpoint holds, without reading a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from colibri.cli.epilog import epilog
from colibri.cli.options import model_option
from colibri.cli.output import count, note, print_json
from colibri.config import readable
from colibri.engine.loading import tokenizer_of
from colibri.engine.model import model_path
from colibri.engine.statistics import describe_model
from colibri.models.registry import model_spec, open_checkpoint
from colibri.observe.summary import Summary, summarize
from colibri.spec import ModelSpec
from colibri.text.tokenizer import Tokenizer
from colibri.weights.gguf import read_gguf
from colibri.weights.single_expert import SingleExpert, find_single_expert, ranges

EPILOG = epilog(
    "families.md",
    "colibri inspect -m model.gguf",
    "colibri inspect -m model.gguf --json | jq .sizes",
)


@click.command("inspect", epilog=EPILOG)
@model_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def command(model: Path | None, as_json: bool) -> None:
    """Show what a checkpoint, or a file of one expert, holds: architecture, experts, parameters, bytes, tokenizer."""
    path = model_path(model)
    expert = find_single_expert(path)
    if expert is not None:
        _show_expert(path, expert, as_json)
        return
    checkpoint = open_checkpoint(path)
    spec = model_spec(checkpoint)
    summary = summarize(checkpoint, spec)
    tokenizer = tokenizer_of(checkpoint)
    if as_json:
        print_json(
            {
                "model": describe_model(checkpoint, spec),
                "spec": _spec_fields(spec),
                "sizes": summary.as_dict(),
                "tokenizer": None if tokenizer is None else _tokenizer_fields(tokenizer),
            }
        )
    else:
        Console(highlight=False).print(_table(spec, summary, tokenizer))
        for said in () if tokenizer is None else tokenizer.notes:
            note(said)


def _spec_fields(spec: ModelSpec) -> dict[str, Any]:
    """The sizes, then the different layers with the numbers of those that are like it."""
    kinds = {layer: [number for number, other in enumerate(spec.layers) if other == layer] for layer in spec.layers}
    return {
        **{name: getattr(spec, name) for name in ("hidden_size", "vocab_size", "context_length")},
        "layers": [{"numbers": numbers, **asdict(layer)} for layer, numbers in kinds.items()],
    }


def _tokenizer_fields(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "end_ids": sorted(tokenizer.eos_ids),
        "chat_template": tokenizer.chat_template is not None,
        "notes": list(tokenizer.notes),
    }


def _vocabulary(tokenizer: Tokenizer) -> dict[str, str]:
    ends = ", ".join(f"{tokenizer.token_text(token)} ({token})" for token in sorted(tokenizer.eos_ids))
    return {
        "vocabulary": f"{tokenizer.vocab_size} tokens, ends with {ends or 'nothing'}",
        "chat template": "yes" if tokenizer.chat_template else "no",
    }


def _show_expert(path: Path, single: SingleExpert, as_json: bool) -> None:
    file, infos = read_gguf(path), [info for parts in single.layers.values() for info in parts.values()]
    types = {name: sum(info.nbytes for info in infos if info.type == name) for name in {info.type for info in infos}}
    shapes = {info.name.split(".")[2].removeprefix("ffn_"): list(info.shape) for info in infos}
    if as_json:
        sizes = {"bytes": sum(types.values()), "bytes_by_type": types, "shapes": shapes}
        names = {"name": file.metadata.get("general.name"), "architecture": file.metadata.get("general.architecture")}
        print_json({"expert": single.expert, "layers": sorted(single.layers), **names, **sizes})
        return
    Console(highlight=False).print(_rows({
        "one expert": str(single.expert),
        "name": file.metadata.text("general.name", "none"),
        "layers": ranges(single.layers),
        "matrices": ", ".join(f"{name} {rows} x {k}" for name, (rows, k) in shapes.items()),
        "block types": ", ".join(f"{name} {readable(nbytes)}" for name, nbytes in sorted(types.items())),
        "use": f"colibri swap -m MODEL --expert {single.expert} {path}",
    }))  # fmt: skip


def _table(spec: ModelSpec, summary: Summary, tokenizer: Tokenizer | None) -> Table:
    rows = {
        "model": spec.name,
        "architecture": f"{spec.architecture}, {len(spec.layers)} layers, hidden size {spec.hidden_size}",
        "experts": f"{spec.experts} a layer, {spec.experts_per_token} used by a token",
        "attention": "; ".join(dict.fromkeys(str(layer.mixer) for layer in spec.layers if layer.mixer)),
        "context": f"{spec.context_length} tokens",
        "parameters": f"{count(summary.parameters)}, {count(summary.active_parameters)} active for a token",
        "file": f"{readable(summary.file_bytes)} in {summary.files} {summary.format} file{'s' * (summary.files > 1)}",
        "dense part": readable(summary.dense_bytes),
        "an expert": _range(summary.expert_bytes),
        "in memory": f"{readable(summary.memory_bytes)} in all, {_range(summary.expert_memory_bytes)} an expert",
        "block types": ", ".join(f"{name} {readable(nbytes)}" for name, nbytes in summary.bytes_by_type.items()),
    }
    rows |= {"vocabulary": f"{spec.vocab_size} ids, no tokenizer"} if tokenizer is None else _vocabulary(tokenizer)
    return _rows(rows)


def _range(sizes: tuple[int, int]) -> str:
    low, high = sizes
    return readable(low) if low == high else f"{readable(low)} to {readable(high)}"


def _rows(rows: Mapping[str, str]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", escape(value))  # names and tokens may look like markup: [/INST]
    return table
