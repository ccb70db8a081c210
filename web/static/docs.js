// A link to a heading opens the part below it.
function openTarget() {
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("details")?.setAttribute("open", "");
}
addEventListener("hashchange", openTarget);
openTarget();
