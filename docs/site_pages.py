"""A hook of MkDocs: pages that stand outside of docs/ are on the site, too, and links between all of them lead there.

In the repository a page links to files by their relative path. The site has the pages of docs/ at its root and every
other Markdown page at its path in the repository. A link to a file that is not on the site becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "benchmarks/*.md", "core/*.md", "hooks/*.md", "kernel/*.md", "plugins/*.md", "tests/*.md")
# A link whose target is a relative path, with or without an anchor.
LINK = re.compile(r"\[([^]]+)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that stand outside of docs/."""
    from mkdocs.structure.files import File

    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    docs = Path(config["docs_dir"])
    here = Path(page.file.abs_src_path).parent

    def site_link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = Path(os.path.normpath(here / target))
        name = path.relative_to(docs if path.is_relative_to(docs) else ROOT).as_posix()
        if files.get_file_from_path(name) is None:
            return text
        return f"[{text}]({os.path.relpath(name, Path(page.file.src_uri).parent)}{anchor})"

    return LINK.sub(site_link, markdown)
