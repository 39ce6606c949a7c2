"""The report as a page of HTML: figures in, text out. The page needs no network and no script, and has no other files.

- `section`: what a section consists of
- `corpus_sections`: padding, document lengths, and which max_len
- `row_sections`: what rows look like, how mixed they are, and whether attention balances
- `account_sections`: what became of every token, and whether a mixture is what was asked for
- `page`: `render_page` and `render_plot`
- `page.html.jinja`, `style.css`, `script.js`: what the page is made of
"""

from packer.report.html.page import render_page, render_plot

__all__ = ["render_page", "render_plot"]
