"""`colibri doctor`: what this machine and this model lack, on one screen."""

from __future__ import annotations

from itertools import chain

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from colibri import ops
from colibri.cli.epilog import epilog
from colibri.cli.options import load_options
from colibri.cli.output import print_json
from colibri.cli.progress import Progress
from colibri.config import LoadOptions
from colibri.observe.doctor import Finding, examine_machine, examine_model

_MARKS = {"ok": "[green]ok[/green]", "slow": "[yellow]slow[/yellow]", "fault": "[red]fault[/red]"}


@click.command("doctor", epilog=epilog("troubleshooting.md", "colibri doctor", "colibri doctor -m model.gguf --ram 8G"))
@load_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def command(options: LoadOptions, as_json: bool) -> int:
    """Look for what is wrong or slow, with what to do about it. Exit status 1 when the model cannot run."""
    if options.threads is not None:
        ops.set_threads(options.threads)
    with Progress(lambda: "measuring"):
        findings = list(chain(examine_machine(), examine_model(options)))
    if as_json:
        print_json({"findings": [finding._asdict() for finding in findings]})
    else:
        Console(highlight=False).print(_table(findings))
    return 1 if any(finding.level == "fault" for finding in findings) else 0


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for overflow in ("ignore", "ignore", "fold"):  # a long path is wrapped, not cut
        table.add_column(overflow=overflow)
    for level, subject, found, advice in findings:
        table.add_row(_MARKS[level], f"[bold]{subject}[/bold]", escape(found))
        if advice:
            table.add_row("", "", f"[italic]-> {escape(advice)}[/italic]")
    return table
