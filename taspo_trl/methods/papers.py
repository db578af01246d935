"""Whom the methods come from, as they are cited; what we do not know of a paper is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A published method.

    Args:
        name (`str`):
            What the method is called.
        arxiv (`str`):
            Its arXiv number.
        title (`str`, *optional*), authors (`str`, *optional*), year (`int`, *optional*):
            Of the paper. Without a title the name and the number have to do.
    """

    name: str
    arxiv: str
    title: str = ""
    authors: str = ""
    year: int | None = None

    @property
    def address(self) -> str:
        """Where it can be read."""
        return f"https://arxiv.org/abs/{self.arxiv}"

    @property
    def reference(self) -> str:
        """One line: title or name, number."""
        return f"{self.title or self.name}, arXiv:{self.arxiv}"

    @property
    def bibtex(self) -> str:
        """An entry for a bibliography."""
        key = f"{self.authors.split(',')[0].split()[-1].lower() if self.authors else 'arxiv'}{self.arxiv}"
        rows = {
            "title": f"{{{{{self.title or self.name}}}}}",
            "author": f"{{{self.authors.replace(', ', ' and ')}}}" if self.authors else "",
            "year": str(self.year or 2000 + int(self.arxiv[:2])),
            "eprint": f"{{arXiv:{self.arxiv}}}",
        }
        width = max(map(len, rows))
        lines = [f"    {name:<{width}} = {value}," for name, value in rows.items() if value]
        return "\n".join([f"@article{{{key},", *lines, "}"])


_ALL = (
    Paper(
        "TASPO",
        "2608.31077",
        "Reconciling Process Supervision with Outcome-Based Credit in Agentic Policy Optimization",
        "Jingxiao Yang, Wangjie Gan, Yingxuan Zhuang, Wenqi Zhang, Jintao Chen, Xuhong Zhang",
    ),
    Paper(
        "GRPO",
        "2402.03300",
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        "Zhihong Shao, Peiyi Wang, Qihao Zhu, Runxin Xu, Junxiao Song, Xiao Bi, Haowei Zhang, Mingchuan Zhang, "
        "Y. K. Li, Y. Wu, Daya Guo",
    ),
    Paper(
        "RLOO",
        "2402.14740",
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
        "Arash Ahmadian, Chris Cremer, Matthias Gallé, Marzieh Fadaee, Julia Kreutzer, Olivier Pietquin, Ahmet Üstün, "
        "Sara Hooker",
    ),
    Paper(
        "REINFORCE++",
        "2501.03262",
        "REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models",
        "Jian Hu",
    ),
    Paper(
        "GiGPO",
        "2505.10978",
        "Group-in-Group Policy Optimization for LLM Agent Training",
        "Lang Feng, Zhenghai Xue, Tingcong Liu, Bo An",
    ),
    Paper("BiPACE", "2606.25556"),
    Paper(
        "HGPO",
        "2602.22817",
        "Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic Tasks",
        "S. He, L. Feng, Q. Wei, X. Cheng, L. Feng, B. An",
    ),
    Paper("GraphGPO", "2605.26684"),
    Paper("HCAPO", "2603.08754"),
    Paper("TRIAGE", "2606.32017"),
    Paper(
        "RLSD",
        "2604.03128",
        "Self-Distilled RLVR",
        "C. Yang, C. Qin, Q. Si, M. Chen, N. Gu, D. Yao, Z. Lin, W. Wang, J. Wang, N. Duan",
    ),
    Paper("SERL", "2605.19447", "What and When to Distill: Selective Hindsight Distillation for Multi-Turn Agents"),
    Paper(
        "StepOPSD",
        "2605.27140",
        "StepOPSD: Step-Aware Online Preference Distillation for Agent Reinforcement Learning",
        "Y. Zhang, X. Lin, C. Wu",
    ),
    Paper(
        "OPID",
        "2606.26790",
        "OPID: On-Policy Skill Distillation for Agentic Reinforcement Learning",
        "S. Yang, J. Wu, Z. Lu, Y. Shen, F. Zhang, L. Feng, S. Zhang, H. Luo, Z. Lian, Z. Wen, J. Tao",
    ),
    Paper("AgentOPSD", "2608.05987"),
    Paper("GRSD", "2607.28076"),
    Paper("TurnSight", "2608.04007"),
    Paper("FACTOR", "2608.07118"),
    Paper(
        "SDAR",
        "2605.15155",
        "Self-Distilled Agentic Reinforcement Learning",
        "Z. Lu, Z. Yao, Z. Han, Z. Wang, J. Wu, Q. Gu, X. Cai, W. Lu, J. Xiao, Y. Zhuang, Y. Shen",
    ),
    Paper(
        "OPSD",
        "2601.18734",
        "Self-Distilled Reasoner: On-Policy Self-Distillation for Large Language Models",
        "S. Zhao, Z. Xie, M. Liu, J. Huang, G. Pang, F. Chen, A. Grover",
    ),
    Paper(
        "GKD",
        "2306.13649",
        "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes",
        "Rishabh Agarwal, Nino Vieillard, Yongchao Zhou, Piotr Stanczyk, Sabela Ramos, Matthieu Geist, Olivier Bachem",
    ),
    Paper(
        "SDPO",
        "2601.20802",
        "Reinforcement Learning via Self-Distillation",
        "J. Hübotter, F. Lübeck, L. Behric, A. Baumann, M. Bagatella, D. Marta, I. Hakimi, I. Shenfeld, "
        "T. K. Buening, C. Guestrin, A. Krause",
    ),
    Paper(
        "Skill-SD",
        "2604.10674",
        "Skill-SD: Skill-Conditioned Self-Distillation for Multi-Turn LLM Agents",
        "H. Wang, G. Wang, H. Xiao, Y. Zhou, Y. Pan, J. Wang, K. Xu, Y. Wen, X. Ruan, X. Chen, H. Qi",
    ),
)

PAPERS: Mapping[str, Paper] = {one.name: one for one in _ALL}
"""Name -> paper."""
