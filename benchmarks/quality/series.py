"""Series to forecast, from the files of aeon and statsmodels: each is divided into its past and the values to forecast.

A long series is divided into pieces, of which each has its own past and future.
"""

import csv
import re

import numpy as np


def m1(folder):
    """Return the yearly series of the M1 competition (Makridakis and others, 1982) before their last six years."""
    lines = (folder / "m1_yearly_dataset" / "m1_yearly_dataset.tsf").read_text(errors="replace").splitlines()
    numbers = [line.rpartition(":")[2] for line in lines[lines.index("@data") + 1 :] if line.strip()]
    return forecasts([np.array(line.split(","), float) for line in numbers], 6, 1)


def fertility(folder):
    """Return births per woman of each country that has all years, before the last eight."""
    columns = _columns(_statsmodels(folder, "fertility"))
    years = [values for name, values in columns.items() if re.fullmatch(r"\d{4}", name)][:52]
    return forecasts([np.array(row, float) for row in zip(*years, strict=True) if all(row)], 8, 1)


def firms(folder):
    """Return Grunfeld's investment, value and capital of each of eleven firms, before the last four years."""
    columns = _columns(_statsmodels(folder, "grunfeld"))
    firm = np.array(columns["firm"])
    chosen = [np.array(columns[name], float) for name in ("invest", "value", "capital")]
    return forecasts([x[firm == one] for x in chosen for one in sorted(set(firm))], 4, 1)


def economy(folder):
    """Return positive quarterly series of the economy of the United States, before the last two years."""
    columns = _columns(_statsmodels(folder, "macrodata"))
    names = "realgdp", "realcons", "realinv", "realgovt", "realdpi", "cpi", "m1", "tbilrate", "unemp", "pop"
    return forecasts([np.array(columns[name], float) for name in names], 8, 4)


def sea(folder):
    """Return the monthly temperature of the sea surface in pieces of ten years, before the last year of each."""
    rows = list(zip(*list(_columns(_statsmodels(folder, "elnino")).values())[1:], strict=True))
    return forecasts(_pieces(np.array(rows, float).ravel(), 120), 12, 12)


def carbon_dioxide(folder):
    """Return monthly means of atmospheric carbon dioxide in pieces of eleven years, before the last year of each."""
    columns, months = _columns(_statsmodels(folder, "co2")), {}
    for date, value in zip(columns["date"], columns["co2"], strict=True):
        months.setdefault(date[:6], []).append(float(value) if value else np.nan)
    known = {month: np.nanmean(values) for month, values in months.items() if not np.isnan(values).all()}
    return forecasts(_pieces(np.array([known[month] for month in sorted(known) if month > "1964"]), 132), 12, 12)


def sales(folder):
    """Return monthly passengers of airlines, sales of shampoo and orders of equipment, before the last year."""
    paths = [folder / "Airline" / "Airline.csv", folder / "ShampooSales" / "ShampooSales.csv"]
    paths.append(_statsmodels(folder, "elec_equip"))
    return forecasts([np.array(list(_columns(path).values())[1], float) for path in paths], 12, 12)


def _statsmodels(folder, name):
    """Return the path of a file of statsmodels, which is installed beside aeon."""
    return folder.parents[2] / "statsmodels" / "datasets" / name / f"{name}.csv"


def _columns(path):
    """Return the columns of a CSV file by name."""
    names, *rows = csv.reader(path.read_text(encoding="utf-8-sig").splitlines())
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def _pieces(x, size):
    """Return the last whole pieces of a series."""
    return np.split(x[len(x) % size :], len(x) // size)


def forecasts(series, horizon, season):
    """Return the past, with horizon and season; and the past again, with the values to forecast."""
    past = [x[:-horizon] for x in series]
    return (past, (horizon, season)), (past, np.stack([x[-horizon:] for x in series]))
