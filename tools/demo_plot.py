"""Pictures of a demo report: loss curves as text, and one SVG with loss curves and bytes per stage against budget."""


def text_curves(baseline, agoq, width=72, height=14):
    n = max(len(baseline), len(agoq))

    def binned(values):
        out = []
        for x in range(width):
            part = values[x * n // width:max((x + 1) * n // width, x * n // width + 1)]
            out.append(sum(part) / len(part) if part else None)
        return out

    curves = {"b": binned(baseline), "a": binned(agoq)}
    known = [v for c in curves.values() for v in c if v is not None]
    low, high = min(known), max(known)
    grid = [[" "] * width for _ in range(height)]
    for mark, curve in curves.items():
        for x, value in enumerate(curve):
            if value is not None:
                y = round((high - value) / ((high - low) or 1) * (height - 1))
                grid[y][x] = "*" if grid[y][x] not in (" ", mark) else mark
    lines = []
    for y, row in enumerate(grid):
        value = high - (high - low) * y / (height - 1)
        lines.append(f"  {value:6.3f} |" + "".join(row).rstrip())
    lines.append("         +" + "-" * width)
    lines.append(f"          0{'steps':^{width - 8}}{n:>6}")
    return "\n".join(lines)


COLORS = {"baseline": "#fdba74", "agoq": "#0f766e", "weights": "#94a3b8", "gradients": "#f59e0b",
          "optimizer": "#a78bfa", "saved": "#0f766e", "workspace": "#cbd5e1"}
PARTS = ("weights", "gradients", "optimizer", "workspace", "saved")


def text(x, y, string, size=12, anchor="start", color="#111827", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}" '
            f'font-weight="{weight}">{string}</text>')


def ticks(low, high, n=5):
    return [low + (high - low) * i / n for i in range(n + 1)]


def loss_panel(report, x0, y0, w, h):
    runs = report["loss"]
    top = max(max(v) for v in runs.values())
    low = min(min(v) for v in runs.values()) * 0.95
    n = max(len(v) for v in runs.values())
    out = [text(x0, y0 - 14, "Training loss", 14, weight="bold")]
    for value in ticks(low, top):
        y = y0 + h * (top - value) / (top - low)
        out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + w}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        out.append(text(x0 - 6, y + 4, f"{value:.2f}", 11, "end", "#6b7280"))
    for step in ticks(0, n, 6):
        out.append(text(x0 + w * step / n, y0 + h + 16, f"{step:.0f}", 11, "middle", "#6b7280"))
    out.append(text(x0 + w / 2, y0 + h + 34, "step", 12, "middle", "#6b7280"))
    for name, values in runs.items():
        points = " ".join(f"{x0 + w * i / n:.1f},{y0 + h * (top - v) / (top - low):.1f}" for i, v in enumerate(values))
        # Drawn first and wide, so that it still shows where the two runs lie on each other.
        stroke = 5 if name == "baseline" else 1.4
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[name]}" stroke-width="{stroke}"/>')
    for event in report["events"]:
        if event["what"] in ("plan", "budget") and 0 <= event["step"] <= n:
            x = x0 + w * event["step"] / n
            color = "#dc2626" if event["what"] == "budget" else "#0ea5e9"
            out.append(f'<line x1="{x:.1f}" y1="{y0}" x2="{x:.1f}" y2="{y0 + h}" stroke="{color}" opacity="0.5"/>')
    legend = [("baseline (16 bits, FP32 gradients)", COLORS["baseline"]),
              ("agoq (planned widths, FP8 gradients)", COLORS["agoq"]), ("plan proposed", "#0ea5e9"),
              ("budget cut", "#dc2626")]
    for i, (name, color) in enumerate(legend):
        y = y0 + 14 + 18 * i
        out.append(f'<rect x="{x0 + w - 262}" y="{y - 9}" width="14" height="4" fill="{color}"/>')
        out.append(text(x0 + w - 242, y - 3, name, 11, color="#374151"))
    return out


def bars_panel(rows, title, x0, y0, w, h, top):
    out = [text(x0, y0 - 14, title, 14, weight="bold")]
    for value in ticks(0, top):
        y = y0 + h * (1 - value / top)
        out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + w}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        out.append(text(x0 - 6, y + 4, f"{value / 2**20:.1f}", 11, "end", "#6b7280"))
    slot = w / len(rows)
    for i, row in enumerate(rows):
        parts = dict(row["parts"])
        parts["workspace"] = row["measured_peak_bytes"] - sum(parts.values())
        x, width, base = x0 + slot * i + slot * 0.2, slot * 0.6, 0
        for part in PARTS:
            y = y0 + h * (1 - (base + parts[part]) / top)
            out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{h * parts[part] / top:.1f}" '
                       f'fill="{COLORS[part]}"/>')
            base += parts[part]
        ghost = y0 + h * (1 - row["bytes_at_16"] / top)
        out.append(f'<rect x="{x:.1f}" y="{ghost:.1f}" width="{width:.1f}" height="{h * row["bytes_at_16"] / top:.1f}" '
                   'fill="none" stroke="#9ca3af" stroke-dasharray="3 3"/>')
        if row["budget_bytes"]:
            y = y0 + h * (1 - row["budget_bytes"] / top)
            out.append(f'<line x1="{x - slot * 0.1:.1f}" y1="{y:.1f}" x2="{x + width + slot * 0.1:.1f}" y2="{y:.1f}" '
                       'stroke="#dc2626" stroke-width="2"/>')
        out.append(text(x + width / 2, y0 + h + 16, f"stage {row['stage']}", 12, "middle"))
        out.append(text(x + width / 2, y0 + h + 31, f"{row['bits_mean']:.1f} bits, {row['live_microbatches']} live", 11,
                        "middle", "#6b7280"))
    return out


def svg(report):
    width, height = 1180, 860
    body = loss_panel(report, 70, 60, 1060, 300)
    both = report["stages"] + report["stages_after_cut"]
    top = 1.1 * max(max(r["bytes_at_16"], r["budget_bytes"] or 0) for r in both)
    body += bars_panel(report["stages"], "Bytes per stage (MiB): first plan to cut", 70, 460, 490, 290, top)
    if report["stages_after_cut"]:
        body += bars_panel(report["stages_after_cut"], "Bytes per stage (MiB): after the cut", 640, 460, 490, 290, top)
    names = {"weights": "weights", "gradients": "gradients (FP8)", "optimizer": "optimizer", "workspace": "buffers",
             "saved": "saved activations"}
    x = 70
    for part in PARTS:
        body.append(f'<rect x="{x}" y="815" width="12" height="12" fill="{COLORS[part]}"/>')
        body.append(text(x + 18, 825, names[part], 12))
        x += 40 + 7.2 * len(names[part])
    body.append(f'<line x1="{x}" y1="821" x2="{x + 16}" y2="821" stroke="#dc2626" stroke-width="2"/>')
    body.append(text(x + 22, 825, "budget", 12))
    body.append(f'<rect x="{x + 80}" y="815" width="12" height="12" fill="none" stroke="#9ca3af" stroke-dasharray="3 3"/>')
    body.append(text(x + 98, 825, "the same tensors at 16 bits", 12))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="Helvetica, Arial, sans-serif"><rect width="{width}" height="{height}" fill="white"/>'
            + "".join(body) + "</svg>\n")
