"""Settings of the documentation site. `make docs` builds it with warnings as errors."""

from __future__ import annotations

import re
from typing import Any

project = "spark_mq"
author = "the spark_mq authors"
copyright = "the spark_mq authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_extra_path = ["llms.txt"]

# Headings become link targets, so that pages can link to sections of each other.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

html_theme = "furo"
html_title = "spark_mq"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
python_maximum_signature_line_length = 80
python_display_short_literal_types = True

_SIGNATURES = re.compile(r"<!-- api\n(.*?)-->\n.*?<!-- end -->", re.S)


def with_directives(text: str) -> str:
    """Return a page with its autodoc directives in place of the signatures for a clone."""
    return _SIGNATURES.sub(r"```{eval-rst}\n\1```", text)


def setup(app: Any) -> None:
    def replace(_app: Any, _page: str, source: list[str]) -> None:
        source[0] = with_directives(source[0])

    app.connect("source-read", replace)
