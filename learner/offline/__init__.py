"""What a run left behind: training from finished stores, the trust meter, versions rebuilt from the
journal."""
