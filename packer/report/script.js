"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const count = (value) => value.toLocaleString("en-US");

  // Rows: the segment under the pointer, or the one that was clicked or reached with the arrow keys.
  const plot = document.querySelector('[data-plot="rows"] .rows');
  const output = byId("segment");
  const { maxLen, step, rows } = JSON.parse(byId("row-data").textContent);
  const bar = 16;
  const ends = rows.map((row) => { let end = 0; return row.extents.map((extent) => (end += extent)); });
  const picked = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ fill: "none", "stroke-width": 2, class: "s-ink", height: bar, width: 0 }))
    picked.setAttribute(name, value);
  picked.setAttribute("vector-effect", "non-scaling-stroke");
  plot.append(picked);
  plot.setAttribute("tabindex", "0");
  output.hidden = false;
  let kept = null;

  const show = (r, s) => {
    const row = rows[r], first = s ? ends[r][s - 1] : 0;
    picked.setAttribute("x", first);
    picked.setAttribute("y", r * step);
    if (s === row.extents.length) {
      picked.setAttribute("width", maxLen - first);
      const further = row.rest ? `${count(row.rest)} tokens in further segments` : "";
      const padding = maxLen - first - row.rest;
      output.textContent = `Row ${count(row.row)}: ${further || `${count(padding)} tokens of padding`}`;
      return;
    }
    const length = row.lengths[s], start = row.starts[s];
    picked.setAttribute("width", row.extents[s]);
    let text = `Row ${count(row.row)}, segment ${s + 1} of ${row.extents.length}: document ${count(row.documents[s])}`;
    text += `, ${count(length)} ${length === 1 ? "token" : "tokens"}`;
    if (start) text += ` from token ${count(start)} on`;
    if (row.trained) text += `, ${count(row.trained[s])} trained (${((100 * row.trained[s]) / length).toFixed(1)}%)`;
    if (row.texts) text += `\n${row.texts[s]}`;
    output.textContent = text;
  };
  const at = (event) => {
    const { a: scale, e: left, f: top } = plot.getScreenCTM();
    const r = Math.floor((event.clientY - top) / step), token = (event.clientX - left) / scale;
    if (r < 0 || r >= rows.length || token < 0 || token >= maxLen) return null;
    const s = ends[r].findIndex((end) => token < end);
    return [r, s < 0 ? rows[r].extents.length : s];
  };
  plot.addEventListener("mousemove", (event) => { const found = at(event); if (found && !kept) show(...found); });
  plot.addEventListener("click", (event) => {
    const found = at(event);
    if (!found) return;
    kept = kept && kept[0] === found[0] && kept[1] === found[1] ? null : found;
    show(...found);
  });
  plot.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in moves)) return;
    const [down, right] = moves[event.key], [r, s] = kept || [0, -1];
    const row = Math.min(rows.length - 1, Math.max(0, r + down));
    kept = [row, Math.min(rows[row].extents.length - 1, Math.max(0, s + right))];
    show(...kept);
    event.preventDefault();
  });

  // The head of the page and its first rows as a picture, as the reader sees them.
  const draw = () => {
    const head = document.querySelector("header"), rowsPlot = plot.parentNode, scale = 2, margin = 24;
    const box = head.getBoundingClientRect(), top = rowsPlot.getBoundingClientRect().top;
    const shift = top - box.bottom - margin; // the rows follow the cards
    const lastRow = (Math.min(rows.length, 10) - 1) * step + bar;
    const canvas = document.createElement("canvas");
    canvas.width = scale * (box.width + 2 * margin);
    canvas.height = scale * (box.height + 3 * margin + plot.getScreenCTM().f - top + lastRow);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.fillStyle = getComputedStyle(document.body).backgroundColor;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.translate(margin - box.left, margin - box.top);
    drawTexts(pen, head);
    for (const card of head.querySelectorAll(".card")) {
      const at = card.getBoundingClientRect();
      pen.strokeStyle = getComputedStyle(card).borderColor;
      pen.strokeRect(at.left, at.top, at.width, at.height);
    }
    pen.translate(0, -shift);
    drawTexts(pen, rowsPlot);
    picked.remove();
    for (const shape of rowsPlot.querySelectorAll("rect,path")) {
      const { fill, stroke } = getComputedStyle(shape), outline = new Path2D(), at = shape.getBoundingClientRect();
      if (shape.tagName === "rect") outline.rect(at.left, at.top, at.width, at.height);
      else outline.addPath(new Path2D(shape.getAttribute("d")), shape.getScreenCTM());
      [pen.fillStyle, pen.strokeStyle] = [fill, stroke];
      if (fill !== "none") pen.fill(outline);
      else pen.stroke(outline);
    }
    plot.append(picked);
    return canvas;
  };
  const drawTexts = (pen, element) => {
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), range = document.createRange();
    while (texts.nextNode()) {
      const node = texts.currentNode, style = getComputedStyle(node.parentNode);
      if (node.parentNode.tagName === "BUTTON") continue;
      pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
      pen.fillStyle = node.parentNode.tagName === "text" ? style.fill : style.color;
      for (const word of node.data.matchAll(/\S+/g)) {
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const at = range.getBoundingClientRect();
        pen.fillText(word[0], at.left, at.bottom - pen.measureText("x").fontBoundingBoxDescent);
      }
    }
  };
  byId("save").hidden = false;
  byId("save").addEventListener("click", () => draw().toBlob((picture) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(picture);
    link.download = `${document.querySelector("h1").textContent}.png`;
    link.click();
  }));
})();
