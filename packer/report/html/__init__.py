"""The report as a page of HTML: figures in, text out. The page needs no network and no script, and has no other files.

- `sections`: a question, an answer and a plot for each part of the page
- `page`: `render_page` and `render_plot`
- `page.html.jinja`, `style.css`, `script.js`: what the page is made of
"""

from packer.report.html.page import render_page, render_plot

__all__ = ["render_page", "render_plot"]
