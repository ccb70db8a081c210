// Adds a copy button above every element with data-copy, whose value names the copied text. On plain
// http browsers have no clipboard, so the button selects the text instead.
for (const text of document.querySelectorAll("[data-copy]")) {
  const bar = document.createElement("div");
  const button = document.createElement("button");
  const said = document.createElement("span");
  bar.className = "copying";
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Copy";
  if (text.dataset.copy) button.setAttribute("aria-label", `Copy ${text.dataset.copy}`);
  said.setAttribute("role", "status");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent.trimEnd());
      said.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      said.textContent = "Selected: copy it with your keyboard";
    }
  });
  bar.append(said, button);
  text.before(bar);
}
