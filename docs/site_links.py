"""Hook of MkDocs: the site shows the repository's pages under paths of its own, so links are rewritten.

Pages outside of `docs/` (README.md becomes the front page) are added to the site. A link between pages stays
a link of the site. A link to another file of the repository becomes the address of that file, below
`extra.repository` of mkdocs.yml. MkDocs itself then checks the links and anchors within the site. The file
llms.txt has the navigation as links, for programs that read the site (https://llmstxt.org).
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = "docs/"
OTHER_PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "vulnerabilities.md",
    "examples/README.md": "examples.md",
    "deploy/alerts/README.md": "alerts.md",
    "deploy/helm/kaishare/README.md": "chart.md",
    "deploy/kai/README.md": "kai.md",
    "deploy/kind/README.md": "kind.md",
    "deploy/vcluster/README.md": "vcluster.md",
}
"""Pages outside of docs/, with their paths on the site."""

_FENCE: Final = re.compile(r" *(`{3,}|~{3,})")
_LINK: Final = re.compile(r"(?:\[(?P<file>[\w./-]+\.md)\]|\])\((?P<to>[^\[\]()\s]+)\)")
_NESTED: Final = re.compile(r"^ {2,3}(?=(?:[-*]|\d+\.) )")
_MARK: Final = re.compile(r"^ *<!-- (?:run|not run here|unmarked commands).*-->$")


def site_path(path: str) -> str | None:
    """Return the path on the site of a file of the repository; None if the site does not have the file."""
    if path.startswith(DOCS) and path.endswith((".md", ".png", ".svg", ".json")):
        return path.removeprefix(DOCS)
    return OTHER_PAGES.get(path)


def repository_path(path: str) -> str:
    """Return the path in the repository of a page of the site."""
    return next((source for source, page in OTHER_PAGES.items() if page == path), f"{DOCS}{path}")


def rewrite(markdown: str, source: str, repository: str, root: Path = ROOT) -> str:
    """Return the text of a page with the links of the site, and without the marks of commands.

    A link whose text is a file's name, as on GitHub, gets the title of that page.

    Args:
        markdown: text of the page.
        source: path of the page in the repository.
        repository: address under which people see the files of the repository, without a slash at its end.
        root: the repository.
    """
    lines = []
    fence = ""
    for line in markdown.splitlines():
        match = _FENCE.match(line)
        if match and (not fence or (match[1].startswith(fence) and line.strip() == match[1])):
            fence = "" if fence else match[1]
            lines.append(line)
        elif fence:
            lines.append(line)
        elif not _MARK.match(line):
            indented = _NESTED.sub("    ", line)  # Python-Markdown nests lists by four blanks
            lines.append(_LINK.sub(lambda link: _link(link, source, repository, root), indented))
        elif lines and lines[-1]:
            lines.append("")  # the mark ended the paragraph above it
    return "\n".join(lines) + "\n"


def _link(link: re.Match[str], source: str, repository: str, root: Path) -> str:
    text = "]"
    if link["file"]:
        page = root / posixpath.dirname(source) / link["to"].partition("#")[0]
        title = page.read_text("utf-8").splitlines()[0].lstrip("# ")
        text = f"[{title.partition(':')[0]}]"
    return f"{text}({_target(link['to'], source, repository, root)})"


def _target(link: str, source: str, repository: str, root: Path) -> str:
    path, hash_sign, anchor = link.partition("#")
    if not path or "://" in link:
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    here, page = site_path(source), site_path(target)
    if here is None:
        raise ValueError(f"{source} is not a page of the site")
    if page is not None:
        return f"{posixpath.relpath(page, posixpath.dirname(here) or '.')}{hash_sign}{anchor}"
    view = "tree" if (root / target).is_dir() else "blob"
    return f"{repository}/{view}/main/{target}{hash_sign}{anchor}"


def llms_text(config: Any) -> str:
    """Return llms.txt: the sections of the navigation, with links to the pages of the site."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    for section in config["nav"]:
        for name, pages in section.items():
            lines += ["", f"## {name}", ""]
            lines += [
                f"- [{title}]({_file_of(page, in_folders=config['use_directory_urls'])})"
                for entry in pages
                for title, page in entry.items()
            ]
    return "\n".join(lines) + "\n"


def _file_of(page: str, *, in_folders: bool) -> str:
    stem = page.removesuffix(".md")
    return f"{stem}/index.html" if in_folders and stem != "index" else f"{stem}.html"


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages outside of docs/, and llms.txt."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - tests import this module without MkDocs

    for source, page in OTHER_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, "llms.txt", content=llms_text(config)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Rewrite the links of a page."""
    return rewrite(markdown, repository_path(page.file.src_uri), config.extra["repository"])
