# SPDX-License-Identifier: Apache-2.0
"""The picture of peers.py's figures: how many times as fast as llama.cpp, a panel a model, a group a column, a bar a file."""


def judged(figure):
    """The ratio that the column is judged by, as README.md says: one sequence beside the same file, all else beside the fastest."""
    return figure["ratio" if figure["column"].startswith("decode of 1 ") else "best"]


def plot(figures, path):
    import matplotlib  # of those who ask for a picture alone

    matplotlib.use("agg")
    from matplotlib import pyplot

    models, columns, files = (list(dict.fromkeys(f[key] for f in figures)) for key in ("model", "column", "format"))
    _, panels = pyplot.subplots(len(models), figsize=(1.5 + 1.6 * len(columns), 0.6 + 2.4 * len(models)), sharex=True,
                                squeeze=False, layout="constrained")
    width = 0.8 / len(files)
    for panel, model in zip(panels[:, 0], models):
        for place, file in enumerate(files):
            bars = {columns.index(f["column"]): judged(f) for f in figures if (f["model"], f["format"]) == (model, file)}
            panel.bar([x + (place - (len(files) - 1) / 2) * width for x in bars], bars.values(), width, label=file,
                      color=pyplot.colormaps["viridis"]((place + 0.5) / len(files)))
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_title(model, fontsize="medium", loc="left")
        panel.set_ylabel("of llama.cpp")
        panel.set_xticks(range(len(columns)), columns)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].legend(ncols=len(files), fontsize="small", loc="lower right", bbox_to_anchor=(1, 1))
    pyplot.savefig(path)
