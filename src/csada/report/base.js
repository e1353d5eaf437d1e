const sized = new ResizeObserver((all) => {
  for (const { target } of all) target.previousElementSibling.hidden = target.scrollWidth <= target.clientWidth + 1;
});
for (const box of document.querySelectorAll(".scroll")) sized.observe(box);
const theme = document.querySelector(".theme"), root = document.documentElement;
const preferred = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.dataset.theme ?? (preferred.matches ? "dark" : "light")) === "dark";
const show = () => { theme.textContent = dark() ? "Light" : "Dark"; };
theme.hidden = false;
theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); });
preferred.addEventListener("change", show);
show();
