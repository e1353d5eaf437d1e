"""What the paper reports, typed once from its tables: (mean, standard deviation), the baselines without one.

These are the authors' figures, not measurements of ours. A table's rows come in the paper's order: cost, pairs, accuracy.
"""

from __future__ import annotations

Printed = tuple[float, float | None]
PrintedRow = tuple[Printed, Printed, Printed, Printed]  # Baseline, CSADA, AP, SOSR

TABLES: dict[str, tuple[PrintedRow, ...]] = {
    "table-cifar10": (
        ((5.49, None), (4.20, 0.03), (5.07, 2.06), (5.12, 2.08)),  # WER (%)
        (
            (1.50, None),
            (0.83, 0.08),
            (1.20, 0.07),
            (1.14, 0.16),
        ),  # top cost pairs' errors (%); printed "Top 1" three times
        ((1.20, None), (0.81, 0.08), (1.06, 0.08), (1.10, 0.29)),
        ((6.00, None), (3.21, 0.16), (5.08, 0.18), (5.04, 0.91)),
        ((95.70, None), (95.54, 0.05), (95.58, 0.15), (95.53, 0.10)),  # accuracy (%)
    ),
    "table-mnist": (
        ((0.46, None), (0.25, 0.01), (0.44, 0.01), (0.43, 0.06)),
        ((0.10, None), (0.00, 0.00), (0.10, 0.00), (0.10, 0.00)),
        ((0.59, None), (0.10, 0.00), (0.54, 0.05), (0.50, 0.15)),
        ((0.00, None), (0.00, 0.00), (0.00, 0.00), (0.00, 0.00)),
        ((99.67, None), (99.62, 0.01), (99.66, 0.01), (99.64, 0.02)),
    ),
    "table-pmi-resnet34": (
        ((36.0, None), (18.0, 1.0), (31.0, 7.8), (29.2, 8.8)),  # total cost
        ((0.50, None), (0.00, 0.00), (0.10, 0.22), (0.30, 0.27)),  # 50111-0434 to 00591-0461 (%)
        ((0.00, None), (0.00, 0.00), (0.00, 0.00), (0.10, 0.22)),  # 53489-0156 to 68382-0227
        ((3.12, None), (3.12, 0.00), (3.12, 0.00), (3.12, 0.00)),  # 53746-0544 to 00378-0208
        ((2.56, None), (0.00, 0.00), (2.56, 1.81), (0.00, 0.00)),  # 68382-0227 to 53489-0156
        ((99.61, None), (99.68, 0.04), (99.53, 0.09), (99.53, 0.05)),  # accuracy (%)
    ),
    "table-pmi-resnet9": (
        ((434.0, None), (345.4, 14.2), (381.2, 16.6), (413.6, 23.8)),
        ((4.50, None), (1.70, 0.84), (2.00, 0.79), (1.40, 0.42)),
        ((1.50, None), (1.70, 0.45), (1.70, 0.27), (1.20, 0.91)),
        ((18.75, None), (15.12, 2.83), (15.62, 2.21), (13.12, 1.40)),
        ((25.64, None), (21.54, 2.92), (21.54, 3.44), (30.77, 11.47)),
        ((92.75, None), (92.84, 0.17), (92.43, 0.17), (91.21, 0.35)),
    ),
    "errors-pmi": (  # numbers of errors on the same four pairs, then on all the others
        ((1, None), (0.0, 0.0), (0.2, 0.4), (0.6, 0.5)),
        ((0, None), (0.0, 0.0), (0.0, 0.0), (0.2, 0.4)),
        ((1, None), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0)),
        ((1, None), (0.0, 0.0), (1.0, 0.7), (0.0, 0.0)),
        ((8, None), (8.0, 1.0), (11.0, 2.3), (11.2, 0.8)),
    ),
}

# Where the paper prints a figure but no numbers: what it says, in our words.
FAILURE = (
    "The paper: Penalty does not improve on the baseline, CSADA lowers the pairs' errors markedly (no numbers given)."
)
LAMBDA = "The paper: as lambda grows, the cost first falls and then rises above the baseline's (no numbers given)."
CONVERGENCE = "The paper: loss and WER are markedly lower at the end of the training (no numbers given)."
TOY = ("multiple", "0")  # critical errors before and after, of one data set
