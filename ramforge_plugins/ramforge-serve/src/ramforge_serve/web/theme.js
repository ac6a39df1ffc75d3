// Before the first paint, so that nobody who chose dark sees a flash of light.
{
  const theme = localStorage.getItem("ramforge.theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
}
