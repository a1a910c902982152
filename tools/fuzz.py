"""Deterministic fuzzing: files, configs, API, command line, grids, stamps and ranks.

python tools/fuzz.py --cases 2000            one campaign; findings are printed, grouped by cause
python tools/fuzz.py --case 12345            one case, as a finding names it
python tools/fuzz.py --against ../old        the same cases with another checkout of the library
"""

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run what is asked for; 1 where there are findings."""
    asked = _options()
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    library = Path(asked.against).resolve() if asked.against else ROOT
    sys.path.insert(0, str(library))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if asked.worker:
        from fuzzing.worker import serve

        return serve()
    from fuzzing import campaign

    if asked.case is not None:
        only = None if asked.only is None else asked.only.split(",")
        return campaign.show(library, asked.case, only)
    report = campaign.run(library, asked.first, asked.cases, asked.jobs, asked.family, asked.progress)
    text = json.dumps(report.plain(), indent=1)
    if asked.json:
        Path(asked.json).write_text(text, encoding="utf-8")
    campaign.tell(report, asked.quiet)
    return 1 if report.unexpected else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="how many cases")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first case")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--family", default=None, help="cases of one family only")
    parser.add_argument("--against", default=None, help="another checkout of the library")
    parser.add_argument("--json", default=None, help="where the report goes")
    parser.add_argument("--case", type=int, default=None, help="run one case and say everything")
    parser.add_argument("--only", default=None, help="of that case: the decisions that are spoilt")
    parser.add_argument("--progress", action="store_true", help="show how far it is")
    parser.add_argument("--quiet", action="store_true", help="print findings only")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
