"""What a run found: for programs as JSON, for CI systems as JUnit XML."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any
from xml.etree import ElementTree as Xml

OUTCOMES = ("passed", "failed", "error", "skipped")
"""`error`: the case itself broke off, which says nothing of the service."""

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Result:
    """One case's outcome.

    Attributes:
        name: `method.behaviour`.
        rule: The rule it shows.
        text: The behaviour, in a sentence.
        outcome: One of `OUTCOMES`.
        ms: How long it took, in milliseconds.
        message: What broke, or why it was skipped.
    """

    name: str
    rule: str
    text: str
    outcome: str
    ms: float
    message: str = ""


@dataclass
class Report:
    """What one run found."""

    target: str
    version: str = ""
    model: str = ""
    backing: str = ""
    epoch: int = 0
    started_at: str = ""
    seconds: float = 0.0
    results: list[Result] = field(default_factory=list)

    @property
    def conforms(self) -> bool:
        """Whether every case that could be shown was, and at least one could."""
        counts = self.counts()
        return counts["passed"] > 0 and not counts["failed"] and not counts["error"]

    def counts(self) -> dict[str, int]:
        """Give how many cases had each outcome."""
        return {outcome: sum(result.outcome == outcome for result in self.results) for outcome in OUTCOMES}

    def failures(self) -> dict[str, str]:
        """Give the messages of what broke, by case."""
        return {result.name: result.message for result in self.results if result.outcome in ("failed", "error")}

    def document(self) -> dict[str, Any]:
        """Give it as plain data."""
        found = {name: value for name, value in asdict(self).items() if name != "results"}
        return {**found, "conforms": self.conforms, "counts": self.counts(), "cases": [*map(asdict, self.results)]}

    def junit(self) -> str:
        """Give it as JUnit XML."""
        counts = self.counts()
        suite = Xml.Element(
            "testsuite",
            name="hisparse.v1",
            hostname=_xml(self.target),
            timestamp=self.started_at,
            tests=str(len(self.results)),
            failures=str(counts["failed"]),
            errors=str(counts["error"]),
            skipped=str(counts["skipped"]),
            time=f"{self.seconds:.3f}",
        )
        for result in self.results:
            method, _, behaviour = result.name.partition(".")
            shown = Xml.SubElement(
                suite, "testcase", classname=f"hisparse.v1.{method}", name=behaviour, time=f"{result.ms / 1000:.3f}"
            )
            if result.outcome != "passed":
                kind = {"failed": "failure"}.get(result.outcome, result.outcome)
                Xml.SubElement(shown, kind, message=_xml(result.message), type=result.rule)
        return Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)
