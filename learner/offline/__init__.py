"""What a run left behind: training from finished stores, steps executed again, versions rebuilt
from the journal, rewards given again."""
