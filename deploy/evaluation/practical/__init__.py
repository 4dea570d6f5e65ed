"""The suite of models of practical size: its runs, results, targets, figures and page."""
