/* Tabs: one panel is shown, its tab is the tab stop, the arrow keys go to the next. */

const { element } = window.bestk;

export class Tabs {
  /** `parts`: [[name, title, content], …]; `onShow(name)` hears which one is shown. */
  constructor(label, parts, onShow) {
    this.onShow = onShow;
    this.tabs = parts.map(([name, title]) => {
      const tab = element("button", { type: "button", role: "tab", id: `tab-${name}`,
        "aria-controls": `panel-${name}` }, title);
      tab.addEventListener("click", () => this.show(name));
      return tab;
    });
    this.panels = parts.map(([name, , content]) => {
      const attributes = { id: `panel-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}` };
      return element("div", { ...attributes, class: "panel-box" }, content);
    });
    this.names = parts.map(([name]) => name);
    this.box = element("div", { class: "tabs", role: "tablist", "aria-label": label }, ...this.tabs);
    this.box.addEventListener("keydown", (event) => this.move(event));
    this.show(this.names[0]);
  }

  show(name) {
    this.current = name;
    this.names.forEach((known, i) => {
      const isShown = known === name;
      this.tabs[i].setAttribute("aria-selected", String(isShown));
      this.tabs[i].tabIndex = isShown ? 0 : -1;
      this.panels[i].hidden = !isShown;
    });
    this.onShow(name);
  }

  /** Show the one that is not shown now. */
  next(by = 1) {
    const count = this.names.length;
    this.show(this.names[(this.names.indexOf(this.current) + by + count) % count]);
  }

  move(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.next(by);
    this.tabs[this.names.indexOf(this.current)].focus();
  }
}
