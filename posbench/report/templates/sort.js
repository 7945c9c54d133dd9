for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const th = button.parentNode, body = th.closest("table").tBodies[0], numeric = th.classList.contains("n");
  const sign = th.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of th.parentNode.cells) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  const text = row => row.cells[th.cellIndex].textContent;
  const order = (a, b) => {
    if (!numeric) return sign * text(a).localeCompare(text(b), undefined, {numeric: true});
    const x = parseFloat(text(a)), y = parseFloat(text(b));
    return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y);
  };
  body.append(...[...body.rows].sort(order));
});
