// A button on each block of code copies it; from a terminal's, it copies the commands, without prompts and output.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  for (const block of navigator.clipboard ? document.querySelectorAll("div.highlight") : []) {
    const code = block.textContent.trimEnd();
    const commands = code.match(/^\$ (.*\\\n)*.*$/gm);
    const isTerminal = block.parentNode.classList.contains("highlight-console");
    if (isTerminal && !commands) continue;
    const copied = isTerminal ? commands.map((command) => command.slice(2)).join("\n") : code;
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(`${copied}\n`);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    block.append(button);
  }
});
